//! Which PostgreSQL to use: the embedded one, or one of the operator's, from `DATABASE_URL` and the `PG_*` values.
//!
//! Holds: a `PG_*` value wins over its part of the URL, the URL over the defaults. No text printed here carries a
//! password. Source: operations 1.3, PostgreSQL.

use super::read::Reader;
use super::settings::{Kind, rows};
use std::time::Duration;
use tokio_postgres::config::{ChannelBinding, Host, SslMode};

/// The PostgreSQL of this broker.
#[derive(Clone)]
pub enum Postgres {
    /// A private cluster under the data directory.
    Embedded,
    /// A server of the operator's, and which certificates it may show; `None`: no TLS. Keepalives, the application name
    /// and `sslmode=disable` are set already.
    Server(Box<tokio_postgres::Config>, Option<Trust>),
}

/// Which certificates of PostgreSQL are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    PublicRoots,
    /// PEM text of one or more CAs.
    Ca(String),
    Anything,
}

impl Trust {
    /// As the boot line has it.
    fn name(&self) -> &'static str {
        match self {
            Trust::PublicRoots => "webpki-roots",
            Trust::Ca(_) => "supplied-ca",
            Trust::Anything => "accept-any",
        }
    }
}

/// Names of which one non-empty value means "my own PostgreSQL".
const NAMES: [&str; 7] = ["DATABASE_URL", "PG_HOST", "PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DATABASE", "PG_DB"];
/// A silently dropped connection is noticed within 60 + 3 x 10 seconds. Source: operations 1.4.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
/// Where the URL names none: a host that does not answer must not hold a shard's connection attempt for minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the target; what is wrong goes to the reader's fatal list.
pub fn read(reader: &mut Reader) -> Postgres {
    let embedded = NAMES.iter().all(|name| reader.filled(name).is_none());
    // Every row is read in any case, so that the boot print and the number rules see it.
    let (host, port) = (reader.text("PG_HOST"), reader.int("PG_PORT") as u16);
    let (user, password) = (reader.text("PG_USER"), reader.text("PG_PASSWORD"));
    reader.text("PG_DB");
    reader.text("DATABASE_URL");
    let named = reader.filled("PG_DATABASE").or(reader.filled("PG_DB"));
    let database = named.unwrap_or(default_text("PG_DATABASE")).to_owned();
    reader.holds("PG_DATABASE", &database);
    let ssl = reader.bool("PG_USE_SSL");
    let trust = trust(reader);
    if embedded {
        hold_trust(reader, None);
        return Postgres::Embedded;
    }
    let url = match reader.filled("DATABASE_URL") {
        None => tokio_postgres::Config::new(),
        Some(text) => match text.parse::<tokio_postgres::Config>() {
            Ok(parsed) => parsed,
            Err(error) => {
                let why = why_not(&error);
                reader.fatal.push(format!("DATABASE_URL cannot be read: {why}"));
                tokio_postgres::Config::new()
            }
        },
    };
    if url.get_channel_binding() == ChannelBinding::Require {
        reader.fatal.push("DATABASE_URL asks for channel binding, which is not supported".into());
    }
    let trust = trust.filter(|_| ssl || url.get_ssl_mode() == SslMode::Require);
    if trust == Some(Trust::Anything) {
        let text = "PG_SSL_REJECT_UNAUTHORIZED is false: whoever answers as PostgreSQL is believed";
        reader.warn("boot", text);
    }
    hold_trust(reader, trust.as_ref());
    let from_url = reader.filled("DATABASE_URL").is_some();
    let wins = |name: &str| if from_url { reader.filled(name).is_some() } else { true };

    let mut target = tokio_postgres::Config::new();
    match url.get_hosts() {
        hosts if hosts.is_empty() || wins("PG_HOST") => {
            target.host(&host);
        }
        hosts => {
            for host in hosts {
                match host {
                    Host::Tcp(name) => target.host(name),
                    Host::Unix(path) => target.host_path(path),
                };
            }
            for address in url.get_hostaddrs() {
                target.hostaddr(*address);
            }
        }
    }
    match url.get_ports() {
        ports if ports.is_empty() || wins("PG_PORT") => {
            target.port(port);
        }
        // One port serves every host; several must be one per host, which PG_HOST may have changed.
        ports if ports.len() > 1 && ports.len() != target.get_hosts().len() => {
            target.port(ports[0]);
        }
        ports => {
            for port in ports {
                target.port(*port);
            }
        }
    }
    target.user(url.get_user().filter(|_| !wins("PG_USER")).unwrap_or(&user));
    target.password(url.get_password().filter(|_| !wins("PG_PASSWORD")).unwrap_or(password.as_bytes()));
    let names_db = from_url && named.is_none();
    target.dbname(url.get_dbname().filter(|name| names_db && !name.is_empty()).unwrap_or(&database));
    if let Some(options) = url.get_options() {
        target.options(options);
    }
    target
        .application_name(url.get_application_name().unwrap_or("queen"))
        .ssl_mode(SslMode::Disable)
        .channel_binding(ChannelBinding::Disable)
        .target_session_attrs(url.get_target_session_attrs())
        .load_balance_hosts(url.get_load_balance_hosts())
        .connect_timeout(url.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT))
        .keepalives(url.get_keepalives())
        .keepalives_idle(KEEPALIVE_IDLE)
        .keepalives_interval(url.get_keepalives_interval().unwrap_or(KEEPALIVE_INTERVAL))
        .keepalives_retries(url.get_keepalives_retries().unwrap_or(KEEPALIVE_PROBES));
    if let Some(timeout) = url.get_tcp_user_timeout() {
        target.tcp_user_timeout(*timeout);
    }

    let shown = (address(&target), target.get_user().unwrap_or_default(), target.get_dbname().unwrap_or_default());
    reader.holds("PG_HOST", shown.0);
    reader.holds("PG_PORT", target.get_ports().iter().map(u16::to_string).collect::<Vec<_>>().join(","));
    reader.holds("PG_USER", shown.1);
    reader.holds("PG_DATABASE", shown.2);
    let password = target.get_password().map(|p| String::from_utf8_lossy(p).into_owned()).unwrap_or_default();
    reader.holds("PG_PASSWORD", super::read::masked(&password));
    Postgres::Server(Box::new(target), trust)
}

/// Whom to trust once TLS is asked for. A supplied CA is checked in any case. Source: operations 1.2, row 6; 1.3.
fn trust(reader: &mut Reader) -> Option<Trust> {
    let verifies = reader.bool("PG_SSL_REJECT_UNAUTHORIZED");
    let pem = reader.text("PG_SSL_ROOT_CERT");
    reader.holds("PG_SSL_ROOT_CERT", super::read::masked(&pem));
    if pem.is_empty() {
        return Some(if verifies { Trust::PublicRoots } else { Trust::Anything });
    }
    if let Err(why) = crate::tls::roots(&pem) {
        reader.fatal.push(format!("PG_SSL_ROOT_CERT is not valid PEM certificate material: {why}"));
        return None;
    }
    if !verifies {
        reader.warn(
            "boot",
            "PG_SSL_ROOT_CERT is set, so PG_SSL_REJECT_UNAUTHORIZED=false is ignored: certificates are verified",
        );
    }
    Some(Trust::Ca(pem))
}

/// For the boot line. Source: operations 1.3.
fn hold_trust(reader: &mut Reader, trust: Option<&Trust>) {
    reader.holds("ssl_trust", trust.map_or("plaintext", Trust::name));
    reader.holds("ssl_verified", trust.is_some_and(|trust| *trust != Trust::Anything));
}

/// The hosts of a target as an operator knows them, without credentials.
pub fn address(target: &tokio_postgres::Config) -> String {
    let hosts = target.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    hosts.collect::<Vec<_>>().join(",")
}

fn default_text(name: &str) -> &'static str {
    match rows().find(|s| s.name == name).map(|s| s.kind) {
        Some(Kind::Text(text)) => text,
        _ => "",
    }
}

/// Parser's reason. An option that is not a known name may be a piece of a password, so it is not repeated.
fn why_not(error: &tokio_postgres::Error) -> String {
    const KNOWN: [&str; 14] = [
        "sslcert",
        "sslkey",
        "sslrootcert",
        "sslcrl",
        "sslpassword",
        "sslcompression",
        "ssl_min_protocol_version",
        "gssencmode",
        "krbsrvname",
        "passfile",
        "service",
        "fallback_application_name",
        "client_encoding",
        "requirepeer",
    ];
    let text = std::error::Error::source(error).map(|s| s.to_string()).unwrap_or_default();
    if text == "invalid value for option `sslmode`" {
        return "sslmode must be disable, prefer or require (certificates are verified unless PG_SSL_REJECT_UNAUTHORIZED is false)".into();
    }
    match text.strip_prefix("unknown option `").and_then(|t| t.strip_suffix('`')) {
        Some(name) if KNOWN.contains(&name) => format!("option {name} is not supported"),
        Some(_) => {
            "it has an option that is not known (is a `?`, `@`, `/` or `%` of the password percent-encoded?)".into()
        }
        None if text.starts_with("invalid value for option") => text,
        None => "expected postgresql://user:password@host:port/database or key=value text".into(),
    }
}
