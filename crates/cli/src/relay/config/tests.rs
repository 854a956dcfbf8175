//! The example and the guide have every key, with the right defaults.

use super::*;

const EXAMPLE: &str = include_str!("../../../../../packaging/relay.toml");
const GUIDE: &str = include_str!("../../../../../docs/relay.md");

fn read(text: &str) -> Result<Config, Mistakes> {
    Config::of(Reader::read("relay.toml", text))
}

fn mistakes(text: &str) -> String {
    let mistakes = read(text).expect_err("it is wrong").0;
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

const SMALL: &str = "[databases.a]\nurl = \"sqlite:a.db\"\n[sinks.n]\nurl = \"null:\"\n[[routes]]\ntopics = [\"*\"]\nsink = \"n\"\n";

#[tokio::test]
async fn the_example_is_right_and_has_every_key() {
    let config = read(EXAMPLE).unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
    assert_eq!((config.databases.len(), config.sinks.len(), config.routes.len()), (1, 2, 2));
    for section in schema::SECTIONS {
        for key in section.keys {
            let written = EXAMPLE
                .lines()
                .any(|line| line.trim_start_matches("# ").starts_with(&format!("{} = ", key.name)));
            assert!(written, "packaging/relay.toml does not show `{}` of [{}]", key.name, section.title);
        }
    }
}

/// Commented-out keys show the defaults.
#[tokio::test]
async fn the_examples_comments_are_keys_that_exist() {
    let uncommented: String = EXAMPLE
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest)
                if rest.starts_with('[')
                    || rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')) =>
            {
                rest
            }
            _ => line,
        })
        .map(|line| format!("{line}\n"))
        .collect();
    let told = mistakes(&uncommented);
    assert!(!told.contains("unknown") && !told.contains("should be") && !told.contains("no TOML"), "{told}");
}

/// The tables of the guide are those of this program.
#[test]
fn the_guide_has_every_key() {
    for line in schema::reference().lines() {
        assert!(
            GUIDE.lines().any(|written| written == line),
            "docs/relay.md, from posthaste relay --keys: {line}"
        );
    }
}

#[tokio::test]
async fn defaults_are_those_of_the_schema() {
    let config = read(SMALL).unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
    assert_eq!(config.settings.workers, schema::WORKERS);
    assert_eq!(config.http.listen, Some("127.0.0.1:7070".parse().unwrap()));
    assert_eq!((config.http.rate, config.http.failures, config.http.connections), (100, 10, 256));
    assert_eq!(read(&format!("{SMALL}[http]\nlisten = \"off\"\n")).unwrap().http.listen, None);
}

#[tokio::test]
async fn wrong_values_are_refused_with_their_line_and_without_themselves() {
    for (more, told) in [
        ("[http]\nrate = \"many\"\n", "relay.toml:9: `rate` should be a whole number, 1 to 100000"),
        ("[http]\ndeadline = \"long\"\n", "relay.toml:9: `deadline` should be a duration"),
        ("[settings]\nworkers = 0\n", "workers is 0; give it 1 to 10000"),
        ("[settings]\nworkers = [1]\n", "is neither a value nor a list of texts"),
        ("[sinks.x]\nurl = \"smtp://h\"\n", "relay.toml:9: the sink's URL has no scheme that is known"),
        ("[sinks.x]\n", "relay.toml:8: no url is given; write url, url_env or url_file"),
        ("[sinks.x]\nurl = \"log:\"\nurl_env = \"X\"\n", "the url is given twice"),
        ("[sinks.x]\nurl_env = \"NO_SUCH_VARIABLE_HERE\"\n", "there is no variable NO_SUCH_VARIABLE_HERE"),
        (
            "[sinks.x]\nurl = \"log:\"\nexchange = \"e\"\n",
            "`exchange` says nothing about a sink of the kind log",
        ),
        ("[http]\nlisten = \"10.0.0.1:80\"\n", "there are no tokens"),
        ("[http]\nlisten = \"nowhere\"\n", "`listen` should be an address and a port"),
        ("[[http.tokens]]\nname = \"a\"\nrole = \"king\"\n", "`role` should be viewer, operator or admin"),
        ("[[http.tokens]]\nname = \"a\"\ntoken = \"x\"\n", "the file is no place for it"),
        ("[encryption]\nkeys = \"x\"\n", "unknown key `keys` in [encryption]"),
        ("[relay]\nlog = \"loud\"\n", "`log` should be error, warn, info"),
        ("[routs]\n", "unknown section `routs`; did you mean `routes`?"),
        ("[databases.\"a/b\"]\nurl = \"sqlite:x.db\"\n", "a name should have 1 to 100 letters"),
    ] {
        let all = mistakes(&format!("{SMALL}{more}"));
        assert!(all.contains(told), "{told}\n{all}");
    }
    assert!(mistakes("").contains("there is no database") && mistakes("").contains("there is no route"));
}

#[tokio::test]
async fn a_secret_in_the_environment_takes_the_place_of_the_files() {
    let mut raw =
        Reader::read("relay.toml", &SMALL.replace("url = \"null:\"", "url_env = \"NO_SUCH_VARIABLE_HERE\""));
    raw.apply_env([("POSTHASTE__SINKS__N__URL".to_owned(), "log:".to_owned())]);
    assert_eq!(
        Config::of(raw).unwrap_or_else(|mistakes| panic!("{mistakes:?}")).sinks[0].kind,
        SinkKind::Log
    );
}
