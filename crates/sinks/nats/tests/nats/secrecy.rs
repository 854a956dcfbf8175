//! Nothing of a message, and no secret, in any log: ours and the driver's, at every level, through every kind of failure.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Headers, Message, Sink as _};
use posthaste_nats::{NatsOptions, NatsSink};
use posthaste_testkit::Logs;

use crate::server::Server;
use crate::support::{message, send_within, stream};

fn loaded(topic: &str) -> Message {
    let mut loaded = message(topic, "{\"text\":\"canary-payload\"}");
    loaded.headers = Headers::from([
        ("authorization".to_owned(), "canary-header".to_owned()),
        ("strange name".to_owned(), "canary\r\nescaped".to_owned()),
    ]);
    loaded.key = Some("canary-key".to_owned());
    loaded.correlation_id = Some("canary-correlation".to_owned());
    loaded.tenant_id = Some("canary-tenant".to_owned());
    loaded.aggregate_id = Some("canary-aggregate".to_owned());
    loaded
}

/// OBX-125, I13: taken, unroutable, too large, wrong login, lost: no canary in a log at TRACE, a verdict, or `Debug`.
#[test]
fn nothing_leaks() {
    let logs = Logs::default();
    // For every thread of this process: the driver has its own.
    tracing::subscriber::set_global_default(logs.clone()).unwrap();
    let mut shown = String::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let config = "jetstream { store_dir: \"FOLDER/js\" }\n\
                      authorization { user: me, password: \"canary-password\" }\n";
        let Some(mut server) = Server::start(Some(config)).await else { return };
        let url = format!("nats://me:canary-password@{}", server.addr());
        let sink = NatsSink::new(NatsOptions::new(&url).unwrap());
        sink.declare(stream("S")).await.unwrap();
        let wrong = NatsOptions::new(server.url()).unwrap().user("me", "canary-wrong");
        let wrong = NatsSink::new(wrong);
        let mut large = loaded("S.a");
        large.payload = "canary".repeat(300_000).into();
        let batch: Vec<Arc<Message>> = [loaded("S.a"), loaded("nobody"), large].map(Arc::new).into();
        for _ in 0..2 {
            for sink in [&sink, &wrong] {
                let verdicts = send_within(sink, &batch, Duration::from_secs(5)).await;
                for error in verdicts.iter().filter_map(|verdict| verdict.as_ref().err()) {
                    shown.push_str(&format!("{error:?} {}\n", error.failure().text()));
                }
                shown.push_str(&format!("{sink:?} {} {:?}\n", sink.name(), sink.probe().await));
            }
            server.kill().await;
            let verdicts = send_within(&sink, &batch, Duration::from_secs(2)).await;
            // The sink knows the limit of the size without asking.
            assert!(verdicts[..2].iter().all(|verdict| verdict.as_ref().is_err_and(|error| error.is_down())));
            server.up().await;
        }
    });
    assert!(!shown.contains("canary"), "{shown}");
    for logged in logs.all() {
        // The tests' own code, and programs that it starts, may log anything.
        assert!(!format!("{logged:?}").contains("canary"), "{logged:?}");
    }
}
