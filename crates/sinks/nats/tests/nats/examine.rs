//! The check of a stream, on the real server.

use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use posthaste_core::{ErrorKind, Severity};

use crate::support::{look, shared, sink, unique};

#[tokio::test]
async fn streams_that_forget_are_told_from_those_that_keep() {
    let Some(url) = shared() else { return };
    let js = look(&url).await;
    for (severity, change) in [
        (Severity::Fine, Config::default()),
        (Severity::Danger, Config { storage: StorageType::Memory, ..Config::default() }),
        (Severity::Danger, Config { no_ack: true, ..Config::default() }),
        (Severity::Warning, Config { max_messages: 9, ..Config::default() }),
        (Severity::Fine, Config { max_messages: 9, discard: DiscardPolicy::New, ..Config::default() }),
    ] {
        let name = unique();
        let config = Config { name: name.clone(), subjects: vec![format!("{name}.>")], ..change };
        js.create_stream(config.clone()).await.unwrap();
        let finding = sink(&url, &name).examine_stream(&name).await.unwrap();
        js.delete_stream(&name).await.unwrap();
        assert_eq!(finding.severity, severity, "{config:?}: {finding:?}");
        assert!(finding.found.starts_with(&name) && finding.remedy.is_none() == (severity == Severity::Fine));
    }
}

#[tokio::test]
async fn a_stream_that_is_not_there_is_not_made_by_looking() {
    let Some(url) = shared() else { return };
    let name = unique();
    let finding = sink(&url, &name).examine_stream(&name).await.unwrap();
    assert_eq!(finding.severity, Severity::Warning);
    assert!(look(&url).await.get_stream(&name).await.is_err());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error() {
    let sink = sink("nats://user:hush@127.0.0.1:9", "x");
    let error = sink.examine_stream("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.remedy().is_some() && !format!("{error:?}").contains("hush"), "{error:?}");
}
