//! What became of each test, read from the report that cargo-nextest leaves in the form of JUnit.
//!
//! Reads only what nextest writes: every `<` inside of a text is escaped there, so that tags can be found by looking for them.

/// The tests of one run.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Results {
    /// When the run began, as the report writes it.
    pub(crate) began: String,
    pub(crate) passed: usize,
    pub(crate) failed: Vec<Test>,
    /// Passed, but not on the first try.
    pub(crate) flaky: Vec<Test>,
    /// The slowest tests, with their seconds.
    pub(crate) slowest: Vec<(String, f64)>,
}

/// A test that failed at least once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Test {
    /// `<binary> <test>`, as nextest prints it.
    pub(crate) name: String,
    /// Why, in one line.
    pub(crate) reason: String,
}

/// How many of the slowest tests are worth a line.
const SLOWEST: usize = 5;
/// The most characters of a reason.
const REASON_WIDTH: usize = 200;

impl Results {
    pub(crate) fn parse(report: &str) -> Self {
        let whole = report.split("<testsuites").nth(1).unwrap_or_default();
        let mut results = Self { began: attribute(whole, "timestamp"), ..Self::default() };
        for case in report.split("<testcase ").skip(1) {
            let (head, rest) = case.split_once('>').unwrap_or((case, ""));
            let name = format!("{} {}", attribute(head, "classname"), attribute(head, "name"));
            let body = if head.ends_with('/') {
                ""
            } else {
                rest.split_once("</testcase>").map_or(rest, |(body, _)| body)
            };
            results.slowest.push((name.clone(), attribute(head, "time").parse().unwrap_or_default()));
            if let Some(failure) = element(body, "failure") {
                results.failed.push(Test { name, reason: reason(failure) });
                continue;
            }
            results.passed += 1;
            if let Some(failure) = element(body, "flakyFailure") {
                results.flaky.push(Test { name, reason: reason(failure) });
            }
        }
        results.slowest.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        results.slowest.truncate(SLOWEST);
        results
    }
}

/// The first element of this name, from after the name on.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_once(&format!("<{name} ")).map(|(_, element)| element)
}

/// The value of an attribute in the tag that the text begins with; empty if it has none.
fn attribute(text: &str, name: &str) -> String {
    let tag = format!(" {}", text.split('>').next().unwrap_or_default());
    let value = tag.split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split_once('"'));
    unescaped(value.map_or("", |(value, _)| value))
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

/// Where and with which words it failed, or what kind of failure it was if it said nothing.
fn reason(failure: &str) -> String {
    let (tag, rest) = failure.split_once('>').unwrap_or((failure, ""));
    let text = if tag.ends_with('/') { "" } else { rest.split('<').next().unwrap_or_default() };
    let text = unescaped(text);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let mut parts = match first.split_once(" panicked at ") {
        Some((_, place)) => vec![place.trim_end_matches(':').to_owned()],
        None if first.is_empty() => vec![attribute(failure, "type")],
        None => vec![first.trim_start_matches("Error: ").to_owned()],
    };
    let words = lines.take_while(|line| *line != "stack backtrace:" && !line.starts_with("note: run with"));
    let words: Vec<&str> = words.collect();
    if !words.is_empty() {
        parts.push(words.join(" "));
    }
    let reason = parts.join(": ");
    match reason.char_indices().nth(REASON_WIDTH) {
        Some((end, _)) => format!("{}…", &reason[..end]),
        None => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="5" failures="3" timestamp="2026-11-18T04:15:39.865+00:00" time="6.483">
    <testsuite name="toy" tests="5" failures="3">
        <testcase name="tests::ok" classname="toy::stores" timestamp="x" time="0.015"/>
        <testcase name="tests::fails" classname="toy" timestamp="x" time="0.266">
            <failure message="thread &apos;tests::fails&apos; (1) panicked at src/lib.rs:4:26" type="test failure with exit code 101">thread &apos;tests::fails&apos; (1) panicked at src/lib.rs:4:26:
assertion `left == right` failed: &amp; &lt;b&gt; are
  left: 1
 right: 2
stack backtrace:
   0: __rustc::rust_begin_unwind</failure>
            <rerunFailure time="0.2" message="thread" type="test failure">thread &apos;x&apos; panicked at other.rs:1:1:
other</rerunFailure>
            <system-err>thread</system-err>
        </testcase>
        <testcase name="tests::error" classname="toy" timestamp="x" time="0.018">
            <failure message="Error: &quot;went wrong&quot;" type="test failure">Error: &quot;went wrong&quot;</failure>
        </testcase>
        <testcase name="tests::hangs" classname="toy" timestamp="x" time="3.011">
            <failure type="test timeout"/>
            <system-out>
running 1 test
</system-out>
        </testcase>
        <testcase name="tests::flaky" classname="toy" timestamp="x" time="0.016">
            <flakyFailure timestamp="x" time="0.267" message="m" type="t">thread &apos;tests::flaky&apos; (2) panicked at src/lib.rs:6:86:
first time
note: run with `RUST_BACKTRACE=1`</flakyFailure>
        </testcase>
    </testsuite>
</testsuites>"#;

    fn test(name: &str, reason: &str) -> Test {
        Test { name: name.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn failed_and_flaky_tests_come_with_one_line_each() {
        let results = Results::parse(REPORT);
        assert_eq!((results.passed, results.began.as_str()), (2, "2026-11-18T04:15:39.865+00:00"));
        let failed = [
            test(
                "toy tests::fails",
                "src/lib.rs:4:26: assertion `left == right` failed: & <b> are left: 1 right: 2",
            ),
            test("toy tests::error", "\"went wrong\""),
            test("toy tests::hangs", "test timeout"),
        ];
        assert_eq!(results.failed, failed);
        assert_eq!(results.flaky, [test("toy tests::flaky", "src/lib.rs:6:86: first time")]);
        assert_eq!(results.slowest[0], ("toy tests::hangs".to_owned(), 3.011));
        assert_eq!(results.slowest[4].0, "toy::stores tests::ok");
    }

    #[test]
    fn a_long_reason_is_cut() {
        let long = format!(r#"message="m" type="t">Error: {}</failure>"#, "ä".repeat(300));
        assert_eq!(reason(&long).chars().count(), REASON_WIDTH + 1);
    }
}
