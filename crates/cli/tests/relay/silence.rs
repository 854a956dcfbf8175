//! A network that forgets connections without closing them: the relay notices, logs it, and goes on with new ones.

use std::net::SocketAddr;

use posthaste_testkit::{Mode, Proxy};

use crate::support::{Base, Scene, eventually, server};

/// A proxy in front of the server of this URL, and the section that leads through it.
async fn through_proxy(url: &str, section: &str) -> (Proxy, String) {
    let address = url.split_once("://").unwrap().1.rsplit_once('@').map_or_else(|| url, |(_, rest)| rest);
    let address = address.split(['/', '?']).next().unwrap();
    let server: SocketAddr = tokio::net::lookup_host(address).await.unwrap().next().unwrap();
    let proxy = Proxy::start(server).await.unwrap();
    let section = section.replace(address, &proxy.addr().to_string());
    (proxy, format!("{section}answer_timeout = \"3s\"\nacquire_timeout = \"10s\"\n"))
}

async fn goes_on(url: &str, base: Base) {
    let (proxy, section) = through_proxy(url, &base.section).await;
    let scene = Scene::new(&format!(
        "[databases.shop]\n{section}[sinks.nowhere]\nurl = \"null:\"\n[[routes]]\ntopics = [\"*\"]\nsink = \"nowhere\"\n"
    ));
    let relay = scene.start().await;
    base.fill("sent.x", 20).await;
    base.is_done(20).await;
    for round in 1..=2 {
        proxy.set(Mode::Blackhole);
        base.fill("sent.x", 20).await;
        // A call that is under way, or a check of an idle connection, has met the silence.
        let failures = relay.count("a call to the store failed");
        eventually("the relay says so", async || relay.count("a call to the store failed") > failures).await;
        proxy.silence();
        proxy.set(Mode::Forward);
        base.is_done(20 + round * 20).await;
        eventually("the relay is ready", async || relay.get("/readyz").await.status == 200).await;
    }
    relay.stop().await;
}

#[tokio::test]
async fn slow_silent_postgres() {
    let Some(url) = server("POSTHASTE_TEST_POSTGRES") else { return };
    goes_on(&url, Base::postgres(&url).await).await;
}

#[tokio::test]
async fn slow_silent_mysql() {
    let Some(url) = server("POSTHASTE_TEST_MYSQL") else { return };
    goes_on(&url, Base::mysql(&url).await).await;
}
