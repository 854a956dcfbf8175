//! SIGHUP: a new configuration takes the place of the old one, and a wrong one changes nothing.

use posthaste::NewMessage;

use crate::support::{Base, Relay, Scene, eventually};

fn config(base: &Base, log: &str, topics: &str) -> String {
    format!(
        "[relay]\nlog = \"{log}\"\n[databases.one]\n{}[sinks.nowhere]\nurl = \"null:\"\n[[routes]]\ntopics = [{topics}]\n\
         sink = \"nowhere\"\n[settings]\npoll_ceiling = \"20ms\"\n",
        base.section
    )
}

async fn reload(relay: &Relay, times: usize) {
    relay.signal("HUP");
    eventually("the configuration is read", async || {
        relay.count("the configuration was read again") == times
    })
    .await;
    eventually("the old one has ended", async || {
        relay.count("what ran under the configuration before has ended") == times
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_route_takes_effect_and_no_message_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let base = Base::sqlite(&folder.path().join("shop.db")).await;
    let scene = Scene::new(&config(&base, "info", "\"old\""));
    let relay = scene.start().await;
    let first = base.fill("old", 300).await.len();
    let waiting = base.fill("new", 10).await.len();
    scene.write(&config(&base, "info", "\"old\", \"new\""));
    reload(&relay, 1).await;
    let more = base.fill("old", 300).await.len();
    base.is_done(first + waiting + more).await;
    assert_eq!(
        relay.get("/v1/status").await.json()["routes"][0]["topics"][1],
        "new",
        "the socket stayed open"
    );
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_file_changes_nothing_and_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let base = Base::sqlite(&folder.path().join("shop.db")).await;
    let scene = Scene::new(&config(&base, "info", "\"old\""));
    let relay = scene.start().await;
    for wrong in ["[relay]\nnam = 1\n", "this is no TOML", "[relay]\n"] {
        scene.write(wrong);
        let before = relay.count("the configuration is wrong");
        relay.signal("HUP");
        eventually("it is logged", async || relay.count("the configuration is wrong") > before).await;
    }
    base.fill("old", 20).await;
    base.is_done(20).await;
    assert_eq!(relay.count("the configuration was read again"), 0);
    assert!(relay.line("the configuration is wrong")["place"].as_str().unwrap().ends_with("relay.toml:2"));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_level_changes() {
    let folder = tempfile::tempdir().unwrap();
    let base = Base::sqlite(&folder.path().join("shop.db")).await;
    let scene = Scene::new(&config(&base, "info", "\"old\""));
    let relay = scene.start().await;
    scene.write(&config(&base, "trace", "\"old\""));
    reload(&relay, 1).await;
    base.fill("old", 1).await;
    eventually("finer lines come", async || {
        relay.log().contains("\"level\":\"DEBUG\"") || relay.log().contains("\"level\":\"TRACE\"")
    })
    .await;
    relay.stop().await;
}

/// A database that is added while the relay runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_database_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let base = Base::sqlite(&folder.path().join("shop.db")).await;
    let added = Base::sqlite(&folder.path().join("added.db")).await;
    let scene = Scene::new(&config(&base, "info", "\"*\""));
    let relay = scene.start().await;
    added.store.enqueue(&[NewMessage::json("any", &1).build().unwrap()]).await.unwrap();
    let more = format!("{}[databases.added]\n{}", config(&base, "info", "\"*\""), added.section);
    scene.write(&more);
    reload(&relay, 1).await;
    added.is_done(1).await;
    relay.stop().await;
}
