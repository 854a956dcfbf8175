//! TLS, with certificates made for the test: verified always, and a refusal says why.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use posthaste_core::Sink as _;
use posthaste_nats::{NatsOptions, NatsSink};

use crate::server::Server;
use crate::support::{classes, messages, send, send_within, stream};

fn openssl(folder: &Path, line: &str) -> bool {
    let mut command = Command::new("openssl");
    command.args(line.split(' ')).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Makes an authority of this name.
fn authority(folder: &Path, name: &str) -> bool {
    openssl(
        folder,
        &format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name} \
             -keyout {name}.key -out {name}.pem"
        ),
    )
}

/// Makes a certificate for this address, signed by the authority, valid for so many days from now.
fn certificate(folder: &Path, name: &str, address: &str, authority: &str, days: i32) {
    std::fs::write(
        folder.join(format!("{name}.ext")),
        format!("subjectAltName=IP:{address}\nbasicConstraints=CA:FALSE\n"),
    )
    .unwrap();
    let key = format!(
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
    );
    assert!(openssl(folder, &key));
    let sign = format!(
        "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial \
         -days {days} -extfile {name}.ext -out {name}.pem"
    );
    assert!(openssl(folder, &sign));
}

fn config(folder: &Path, certificate: &str, verify: bool) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    let clients =
        if verify { format!("verify: true, ca_file: \"{}\"", file("good.pem")) } else { String::new() };
    format!(
        "jetstream {{ store_dir: \"FOLDER/js\" }}\ntls {{ cert_file: \"{}\", key_file: \"{}\", {clients} }}\n",
        file(&format!("{certificate}.pem")),
        file(&format!("{certificate}.key")),
    )
}

async fn reason(options: NatsOptions) -> String {
    let verdicts = send_within(&NatsSink::new(options), &messages("S.a", 1), Duration::from_secs(8)).await;
    assert_eq!(classes(&verdicts), ["down"]);
    verdicts[0].as_ref().unwrap_err().failure().text().to_owned()
}

/// TLS: the right authority works, with a client's certificate, too; self-signed, wrong host, expired, unknown authority and a
/// server without TLS are refused, each with its reason.
#[tokio::test]
async fn slow_only_the_right_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    if !authority(folder, "good") || !authority(folder, "other") {
        eprintln!("skipped: openssl is not installed");
        return;
    }
    certificate(folder, "server", "127.0.0.1", "good", 2);
    certificate(folder, "elsewhere", "127.0.0.9", "good", 2);
    certificate(folder, "expired", "127.0.0.1", "good", -1);
    certificate(folder, "client", "127.0.0.1", "good", 2);
    let ca = folder.join("good.pem");

    let Some(server) = Server::start(Some(&config(folder, "server", true))).await else { return };
    let options = NatsOptions::new(server.url()).unwrap().ca_file(&ca);
    let with_client =
        options.clone().client_certificate(folder.join("client.pem"), folder.join("client.key"));
    let sink = NatsSink::new(with_client.clone());
    sink.declare(stream("S")).await.unwrap();
    assert!(sink.probe().await.is_ok());
    let verdicts = send(&sink, &messages("S.a", 3)).await;
    assert_eq!(classes(&verdicts), ["ok", "ok", "ok"]);
    let without = reason(options).await;
    assert!(!without.is_empty());

    let mut reasons = vec![("no client certificate", without, "")];
    let unknown = NatsOptions::new(server.url()).unwrap().ca_file(folder.join("other.pem"));
    reasons.push(("unknown authority", reason(unknown).await, "certificate"));
    let systems = NatsOptions::new(server.url().replace("nats:", "tls:")).unwrap();
    reasons.push(("the system's authorities", reason(systems).await, ""));
    for (name, word) in [("other", "certificate"), ("elsewhere", "certificate"), ("expired", "certificate")] {
        let Some(server) = Server::start(Some(&config(folder, name, false))).await else { return };
        let options = NatsOptions::new(server.url()).unwrap().ca_file(&ca);
        reasons.push((name, reason(options).await, word));
    }
    let Some(plain) = Server::start(None).await else { return };
    let insisting = NatsOptions::new(plain.url()).unwrap().ca_file(&ca);
    reasons.push(("plaintext", reason(insisting).await, "TLS"));
    for (what, reason, word) in reasons {
        eprintln!("{what}: {reason}");
        assert!(reason.contains(word), "{what}: {reason}");
    }
}
