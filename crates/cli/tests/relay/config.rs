//! Valid configurations, and the errors of invalid ones.

use crate::support::Scene;

#[tokio::test]
async fn all_mistakes_are_told_with_their_lines_and_what_was_meant() {
    let scene = Scene::new(
        "[relay]\nnam = \"x\"\n[databases.shop]\nurl = \"postgres://u:CANARY@h/d\"\n[sinks.rabbit]\nurl = \"amqp://h\"\n\
         exchang = \"CANARY\"\n[[routes]]\ntopics = [\"a\"]\nsink = \"rabit\"\n[settings]\nlease = \"CANARY\"\n\
         [http]\nlisten = \"0.0.0.0:7070\"\n",
    );
    let (code, _, told) = scene.finish(&[]).await;
    assert_eq!(code, 2);
    for expected in [
        "relay.toml:2: unknown key `nam` in [relay]; did you mean `name`?",
        "relay.toml:7: unknown key `exchang` in [sinks.rabbit]; did you mean `exchange`?",
        "relay.toml:10: there is no sink of that name; the sinks are rabbit",
        "relay.toml:12: ",
        "there are no tokens",
    ] {
        assert!(told.contains(expected), "{expected}\n{told}");
    }
    assert!(!told.contains("postgres://"), "{told}");
}

#[tokio::test]
async fn the_environment_overrides_the_file_and_is_checked_as_the_file_is() {
    let scene = Scene::small("[http]\nrate = 7\n").await.env("POSTHASTE__HTTP__RATE", "8");
    let (code, told, _) = scene.finish(&["--check", "--json"]).await;
    assert_eq!(code, 0);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["configuration"]["http"]["rate"], 8);
    assert_eq!(told["configuration"]["settings"]["workers"], 100);
    let scene = scene.env("POSTHASTE__HTTP__RAAT", "8");
    let (code, _, told) = scene.finish(&["--check"]).await;
    assert_eq!(code, 2);
    assert!(
        told.contains("POSTHASTE__HTTP__RAAT: there is no key `raat` in [http]; did you mean `rate`?"),
        "{told}"
    );
}

#[tokio::test]
async fn what_is_shown_is_a_configuration_that_says_the_same() {
    let scene = Scene::small("[settings]\nlease = \"7s\"\n").await;
    let (code, told, _) = scene.finish(&["--check"]).await;
    assert_eq!(code, 0);
    let (shown, tried) = told.split_once("\ndatabase shop: ok").unwrap();
    assert!(tried.contains("sink nowhere: ok"), "{tried}");
    scene.write(shown);
    assert_eq!(scene.finish(&["--check"]).await.1, told);
}

#[tokio::test]
async fn a_check_says_what_cannot_be_reached() {
    let scene = Scene::small("").await;
    let config = std::fs::read_to_string(scene.config()).unwrap();
    // No server listens on the port of tcpmux.
    scene.write(&format!(
        "{config}[sinks.gone]\nurl = \"nats://u:CANARY@127.0.0.1:1\"\nconnect_timeout = \"1s\"\n"
    ));
    let (code, told, _) = scene.finish(&["--check"]).await;
    assert_eq!(code, 4, "{told}");
    assert!(told.contains("sink gone: failed: ") && told.contains("database shop: ok"), "{told}");
    assert!(!told.contains("CANARY"), "{told}");
}

#[tokio::test]
async fn tables_that_are_missing_are_made_only_if_asked_for() {
    let scene = Scene::new("");
    let file = scene.folder.path().join("new.db");
    scene.write(&format!(
        "[databases.shop]\nurl = \"sqlite:{}?mode=rwc\"\n[sinks.n]\nurl = \"null:\"\n[[routes]]\ntopics = [\"*\"]\nsink = \"n\"\n",
        file.display()
    ));
    let (code, told, _) = scene.finish(&["--check"]).await;
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("database shop: failed: "), "{told}");
    assert_eq!(scene.finish(&["--check", "--migrate"]).await.0, 0);
    assert_eq!(scene.finish(&["--check"]).await.0, 0);
}

#[tokio::test]
async fn tenants_are_listed_and_those_that_fail_are_named() {
    let scene = Scene::small("").await;
    let config = std::fs::read_to_string(scene.config()).unwrap();
    scene.write(&format!(
        "{config}[databases.gone]\nurl = \"sqlite:{}/no/such.db\"\n",
        scene.folder.path().display()
    ));
    let output =
        scene.command().args(["--json", "tenants", "--config"]).arg(scene.config()).output().await.unwrap();
    assert_eq!(output.status.code(), Some(4));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["tenants"][0]["name"], "gone");
    assert!(told["tenants"][0]["error"].is_string());
    assert_eq!(told["tenants"][1]["state"], "ok");
    assert_eq!(told["tenants"][1]["stats"]["ready"]["value"], 0);
}
