//! Texts that others wrote cannot command the terminal.

use posthaste::{Change, Filter};

use crate::support::{Place, Ran, fail, message, on_both};

/// Sets a title, goes up a line, rings, turns the text around, and begins a command of eight bits.
const HOSTILE: &str = "a\u{1b}]0;owned\u{7}\u{1b}[1A\u{202e}\u{9b}31mz";

on_both!(hostile_texts_are_made_harmless);

fn harmless(ran: Ran) -> Ran {
    for bad in ['\u{1b}', '\u{7}', '\u{202e}', '\u{9b}'] {
        assert!(!ran.out.contains(bad) && !ran.err.contains(bad), "{bad:?} is in {ran:?}");
    }
    ran
}

async fn hostile_texts_are_made_harmless(place: &Place) {
    let id =
        place.publish(message(HOSTILE).key(HOSTILE).header(HOSTILE, HOSTILE).correlation_id(HOSTILE)).await;
    place.settle(fail(HOSTILE)).await;
    let filter = Filter { ids: vec![id], ..Filter::default() };
    place.store.bury(&Change::new(filter, HOSTILE, HOSTILE).unwrap()).await.unwrap();
    place.store.pause(HOSTILE, HOSTILE, HOSTILE).await.unwrap();
    place.publish(message(HOSTILE)).await;
    let id = id.to_string();
    for args in [
        &["status"][..],
        &["top", "--once"],
        &["list"],
        &["show", &id, "--payload"],
        &["why", &id],
        &["pause"],
    ] {
        let ran = harmless(place.run(&[args, &["--json"]].concat()).exits(0));
        // The value is the same: only its letters differ.
        assert!(place.json(args).to_string().contains('\u{9b}'), "{ran:?}");
    }
    harmless(place.run(&["resume", "\u{1b}[2J\u{9b}", "--json"]).exits(3));
    harmless(place.run(&["status"]).exits(0)).says("owned");
    harmless(place.run(&["top", "--once"]).exits(0));
    harmless(place.run(&["list"]).exits(0)).says("owned");
    harmless(place.run(&["show", &id, "--payload"]).exits(0)).says("owned");
    harmless(place.run(&["why", &id]).exits(0)).says("owned");
    harmless(place.run(&["pause"]).exits(0)).says("owned");
    harmless(place.run(&["resume", HOSTILE, "\u{1b}[2J"]).exits(3));
    harmless(place.run(&["enqueue", "\u{1b}[2J", "no JSON"]).exits(2));
}
