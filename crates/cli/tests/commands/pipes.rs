//! A reader may close the pipe early.

use crate::support::{Place, command, message, on_both};

on_both!(a_reader_that_goes_away_is_no_error);

async fn a_reader_that_goes_away_is_no_error(place: &Place) {
    place.publish(message("t")).await;
    let schema = place.table().split_once('.').map(|(schema, _)| schema.to_owned());
    for args in [&["list"][..], &["status", "--json"], &["top", "--every", "100ms"]] {
        let mut args: Vec<&str> = args.iter().copied().chain(["--store", &place.url]).collect();
        if let Some(schema) = &schema {
            args.extend(["--schema", schema]);
        }
        let mut child = command(&args).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && err.is_empty(), "{args:?}: {err}");
    }
}
