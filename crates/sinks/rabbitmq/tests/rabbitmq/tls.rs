//! Servers that must not be trusted: each is refused, with a reason, and gets no secret.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use posthaste_core::Sink as _;
use posthaste_rabbitmq::{RabbitOptions, RabbitServer, RabbitSink};
use posthaste_testkit::SinkFixture as _;
use tokio::io::AsyncReadExt as _;

use crate::fixture::{until, with_server};
use crate::node::free_port;

/// Certificates of two authorities, of which one is trusted.
pub(crate) struct Certificates(tempfile::TempDir);

impl Certificates {
    pub(crate) fn make() -> Self {
        let made = Self(tempfile::tempdir().unwrap());
        let here = "subjectAltName=DNS:localhost,IP:127.0.0.1";
        for authority in ["ca", "other"] {
            made.openssl(&format!(
                "req -x509 {NEW} -days 2 -subj /CN={authority} -keyout {authority}.key -out {authority}.pem"
            ));
        }
        made.request("self");
        std::fs::write(made.path("names"), here).unwrap();
        made.openssl("x509 -req -in self.csr -signkey self.key -days 2 -extfile names -out self.pem");
        for (name, authority, names) in [
            ("server", "ca", here),
            ("client", "ca", "subjectAltName=DNS:client"),
            ("stranger", "other", here),
            ("elsewhere", "ca", "subjectAltName=DNS:rabbit.example"),
        ] {
            made.request(name);
            std::fs::write(made.path("names"), names).unwrap();
            made.openssl(&format!(
                "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 2 -extfile names -out {name}.pem"
            ));
        }
        made.request("expired");
        std::fs::write(made.path("index"), "").unwrap();
        std::fs::write(made.path("serial"), "77").unwrap();
        let settings = format!(
            "[ca]\ndefault_ca=a\n[a]\ndatabase=index\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\nx509_extensions=x\n\
             [p]\ncommonName=supplied\n[x]\n{here}\n"
        );
        std::fs::write(made.path("settings"), settings).unwrap();
        made.openssl(
            "ca -batch -config settings -cert ca.pem -keyfile ca.key -in expired.csr -out expired.pem -startdate 20200101000000Z -enddate 20200102000000Z -notext",
        );
        made
    }

    fn request(&self, name: &str) {
        self.openssl(&format!("req {NEW} -subj /CN=localhost -keyout {name}.key -out {name}.csr"));
    }

    fn openssl(&self, arguments: &str) {
        let output =
            Command::new("openssl").args(arguments.split(' ')).current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Their part of a node's configuration.
    pub(crate) fn configuration(&self) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        format!(
            "listeners.ssl.1 = 127.0.0.1:{{tls}}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
             ssl_options.keyfile = {}\nssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = false\n",
            path("ca.pem"),
            path("server.pem"),
            path("server.key")
        )
    }
}

const NEW: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// A server that speaks TLS, and nothing else.
struct Server {
    port: u16,
    child: Child,
}

impl Server {
    async fn start(folder: &Path, certificate: &str, more: &[&str]) -> Self {
        let port = free_port();
        let child = Command::new("openssl")
            .args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{port}")])
            .args(["-cert", &format!("{certificate}.pem"), "-key", &format!("{certificate}.key")])
            .args(more)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { port, child };
        until("the server listens", async || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(())
        })
        .await;
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Long enough for a handshake on a slow machine.
const PATIENT: Duration = Duration::from_secs(60);
/// For servers that never answer.
const BRIEF: Duration = Duration::from_secs(5);

fn sink(certificates: &Certificates, port: u16, connect_timeout: Duration) -> RabbitSink {
    let server = RabbitServer::new(&format!("amqps://shop:hush-hush@localhost:{port}")).unwrap();
    let server = server.ca(certificates.read("ca.pem")).unwrap().connect_timeout(connect_timeout);
    RabbitSink::new(RabbitOptions::to(server, "shop")).unwrap()
}

/// OBX-126: TLS is verified. A server is refused if its certificate is self-signed, for another name, expired or of an unknown
/// authority, or if it speaks no TLS or only an old one. The error has a reason, and no secret.
#[test]
fn who_cannot_be_trusted_is_refused() {
    with_server(async |fixture| {
        let certificates = Certificates::make();
        let folder = certificates.0.path();
        let old = ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"];
        for (certificate, more, why) in [
            ("self", &[][..], "UnknownIssuer"),
            ("elsewhere", &[], "not valid for name"),
            ("expired", &[], "expired"),
            ("stranger", &[], "UnknownIssuer"),
            ("server", &old, "version"),
        ] {
            let server = Server::start(folder, certificate, more).await;
            let error = sink(&certificates, server.port, PATIENT).probe().await.unwrap_err();
            let text = error.failure().text().to_owned();
            println!("{certificate}: {text}");
            assert!(
                error.is_down() && text.to_lowercase().contains(&why.to_lowercase()),
                "{certificate}: {text}"
            );
            assert!(!text.contains("hush"), "{text}");
        }
        // The same server, without a fault: the handshake is made, and only AMQP is not spoken.
        let server = Server::start(folder, "server", &[]).await;
        let error = sink(&certificates, server.port, BRIEF).probe().await.unwrap_err();
        assert!(!error.failure().text().contains("certificate"), "{}", error.failure().text());
        // A server without TLS.
        let plain = sink(&certificates, fixture.server().port(), BRIEF).probe().await.unwrap_err();
        println!("plain: {}", plain.failure().text());
        assert!(plain.is_down() && !plain.failure().text().contains("hush"));
    });
}

/// OBX-126: a listener gets no login before the TLS handshake is done.
#[test]
fn no_login_without_tls() {
    with_server(async |_| {
        let certificates = Certificates::make();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sink = sink(&certificates, listener.local_addr().unwrap().port(), BRIEF);
        let listening = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard).await;
            heard
        });
        assert!(sink.probe().await.unwrap_err().is_down());
        let heard = listening.await.unwrap();
        assert!(heard.starts_with(&[0x16, 3]), "a handshake");
        assert!(!heard.windows(4).any(|window| window == b"hush" || window == b"AMQP"));
    });
}
