//! The reading rules of operations 1.1 and the fatal conditions of 1.2 that concern the configuration.

use super::*;

#[track_caller]
fn load(vars: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let vars = vars.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    Config::from_vars(&vars, true)
}

#[track_caller]
fn ok(vars: &[(&str, &str)]) -> Config {
    load(vars).unwrap_or_else(|fatal| panic!("{fatal:?}"))
}

#[track_caller]
fn fatal(vars: &[(&str, &str)], want: &str) {
    let Err(lines) = load(vars) else { panic!("{vars:?} must be fatal") };
    assert!(lines.iter().any(|line| line.contains(want)), "{lines:?}");
}

fn server(config: &Config) -> &tokio_postgres::Config {
    match &config.postgres {
        Postgres::Server(target, _) => target,
        Postgres::Embedded => panic!("embedded"),
    }
}

#[test]
fn every_bad_boolean_is_reported_in_one_boot() {
    let Err(lines) = load(&[("QUEEN_LOG_JSON", "maybe"), ("QUEEN_APPLY_SCHEMA", "2"), ("QUEEN_POP_FUSION", "si")])
    else {
        panic!("must be fatal")
    };
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines.contains(
            &"QUEEN_LOG_JSON=\"maybe\" is not a boolean (expected true/false, 1/0, yes/no, on/off)".to_owned()
        )
    );
}

#[test]
fn booleans_ignore_case_and_blanks_and_blank_is_the_default() {
    for (text, want) in
        [(" TRUE ", true), ("Yes", true), ("on", true), ("1", true), ("", false), ("  ", false), ("OFF", false)]
    {
        assert_eq!(ok(&[("QUEEN_LOG_JSON", text)]).log_json, want, "{text:?}");
    }
    assert!(ok(&[("QUEEN_APPLY_SCHEMA", " ")]).apply_schema);
}

#[test]
fn numbers_are_lenient_and_clamped() {
    assert_eq!(ok(&[("DB_POOL_SIZE", "16O")]).db_pool_size, 160);
    assert_eq!(ok(&[("DB_POOL_SIZE", "0")]).db_pool_size, 1);
    assert_eq!(ok(&[("DB_POOL_SIZE", "-4")]).db_pool_size, 160);
    assert_eq!(ok(&[("QUEEN_LOG_RATES_MS", "5")]).log_rates, Duration::from_secs(1));
    assert_eq!(ok(&[("STATS_INTERVAL_MS", "5")]).stats_interval, Duration::from_secs(1));
    ok(&[("POP_WAIT_BACKOFF_MULTIPLIER", "x")]);
}

#[test]
fn strict_numbers_are_fatal() {
    for (name, text) in [
        ("QUEEN_POP_AUTOPILOT_BATCH", "many"),
        ("QUEEN_POP_AUTOPILOT_BURST_CAP", "65"),
        ("QUEEN_RETENTION_DUE_CAP", "-1"),
        ("QUEEN_RETENTION_SAFETY_WALK_MS", "1d"),
        ("QUEEN_POP_AUTOPILOT", "sometimes"),
    ] {
        fatal(&[(name, text)], name);
    }
    ok(&[("QUEEN_POP_AUTOPILOT", "shadow"), ("QUEEN_RETENTION_SAFETY_WALK_MS", "0")]);
}

#[test]
fn the_autopilot_is_on_unless_told_otherwise() {
    let mode = |text: &str| ok(&[("QUEEN_POP_AUTOPILOT", text)]).autopilot;
    assert!(ok(&[]).autopilot && mode("on") && mode("true") && mode(""));
    assert!(!mode("off") && !mode("0") && !mode("shadow"));
    assert_eq!((ok(&[]).autopilot_batch, ok(&[("QUEEN_POP_AUTOPILOT_BATCH", "7")]).autopilot_batch), (100, 7));
    fatal(&[("QUEEN_POP_AUTOPILOT_BATCH", "10001")], "QUEEN_POP_AUTOPILOT_BATCH");
}

#[test]
fn the_default_timeout_beats_its_second_name() {
    let ms = |vars: &[(&str, &str)]| ok(vars).pop_timeout.as_millis();
    assert_eq!(ms(&[]), 30_000);
    assert_eq!(ms(&[("POP_DEFAULT_TIMEOUT_MS", "7")]), 7);
    assert_eq!(ms(&[("POP_DEFAULT_TIMEOUT_MS", "7"), ("DEFAULT_TIMEOUT", "9")]), 9);
    assert_eq!(ms(&[("POP_DEFAULT_TIMEOUT_MS", "7"), ("DEFAULT_TIMEOUT", "x")]), 7);
}

#[test]
fn any_other_subscription_mode_is_all() {
    for (text, want) in
        [("new", Start::New), (" NEW-only ", Start::New), ("all", Start::All), ("x", Start::All), ("", Start::All)]
    {
        assert_eq!(ok(&[("DEFAULT_SUBSCRIPTION_MODE", text)]).default_start, want, "{text}");
    }
    assert_eq!(ok(&[]).default_start, Start::New);
}

#[test]
fn the_listener_stays_on_this_machine_until_told() {
    assert_eq!(ok(&[]).listen(), "127.0.0.1:6632");
    assert_eq!(ok(&[("QUEEN_BIND_ADDR", "::"), ("PORT", "80")]).listen(), "[::]:80");
    assert_eq!(ok(&[("QUEEN_BIND_ADDR", "[::1]")]).listen(), "[::1]:6632");
    fatal(&[("QUEEN_BIND_ADDR", "")], "QUEEN_BIND_ADDR is empty");
    fatal(&[("QUEEN_BIND_ADDR", "0.0.0.0:80")], "carries a port");
    fatal(&[("QUEEN_BIND_ADDR", "[::1]:80")], "carries a port");
    fatal(&[("PORT", "http")], "PORT=\"http\" is not a port");
}

#[test]
fn without_any_database_setting_postgresql_is_embedded() {
    let empty = [("DATABASE_URL", ""), ("PG_HOST", ""), ("PG_PASSWORD", "")];
    for vars in [&[][..], &empty[..], &[("PGHOST", "elsewhere")][..]] {
        assert!(matches!(ok(vars).postgres, Postgres::Embedded));
    }
    let config = ok(&[("PG_DB", "orders")]);
    let target = server(&config);
    assert_eq!(postgres::address(target), "localhost");
    assert_eq!(
        (target.get_user(), target.get_dbname(), target.get_ports()),
        (Some("postgres"), Some("orders"), &[5432][..])
    );
    assert_eq!(target.get_password(), Some(&b"postgres"[..]));
}

#[test]
fn a_pg_value_wins_over_its_part_of_the_url() {
    let url =
        ("DATABASE_URL", "postgres://ann:s%40fe@a.example:6000,b.example:6001/shop?target_session_attrs=read-write");
    let config = ok(&[url]);
    let target = server(&config);
    assert_eq!(postgres::address(target), "a.example,b.example");
    assert_eq!(
        (target.get_user(), target.get_dbname(), target.get_ports()),
        (Some("ann"), Some("shop"), &[6000, 6001][..])
    );
    assert_eq!(target.get_password(), Some(&b"s@fe"[..]));
    assert_eq!(target.get_target_session_attrs(), tokio_postgres::config::TargetSessionAttrs::ReadWrite);

    let config = ok(&[url, ("PG_HOST", "c.example"), ("PG_USER", "bob"), ("PG_DB", "till"), ("PG_PASSWORD", "")]);
    let target = server(&config);
    assert_eq!(postgres::address(target), "c.example");
    assert_eq!((target.get_user(), target.get_dbname(), target.get_ports()), (Some("bob"), Some("till"), &[6000][..]));
    assert_eq!(target.get_password(), Some(&b"s@fe"[..]));

    let config = ok(&[("DATABASE_URL", "host=/run/pg dbname=x"), ("PG_PORT", "7")]);
    assert_eq!((postgres::address(server(&config)).as_str(), server(&config).get_ports()), ("/run/pg", &[7][..]));
}

#[test]
fn a_bad_url_is_fatal_and_its_password_stays_unsaid() {
    for (url, want) in [
        ("postgres://u:p@h/db?hunter2=x", "percent-encoded"),
        ("mysql://u:hunter2@h/db", "expected postgresql://"),
        ("postgres://u:hunter2@h/db?channel_binding=require", "channel binding"),
        ("postgres://u:hunter2@h/db?sslmode=verify-full", "sslmode must be"),
        ("postgres://u:hunter2@h/db?sslrootcert=/x", "option sslrootcert is not supported"),
        ("postgres://u:hunter2@h:port/db", "port"),
    ] {
        fatal(&[("DATABASE_URL", url)], want);
        let Err(lines) = load(&[("DATABASE_URL", url)]) else { unreachable!() };
        assert!(!lines.concat().contains("ter2"), "{lines:?}");
    }
}

#[test]
fn tls_to_postgresql_is_all_or_nothing() {
    let ca = include_str!("../../tests/keys/ca.pem");
    let trust = |vars: &[(&str, &str)]| {
        let config = ok(vars);
        let Postgres::Server(_, trust) = &config.postgres else { panic!("no server") };
        let line = config.boot_lines.iter().find(|l| l.message == "config: postgres").expect("its line");
        let field = |name: &str| line.fields.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()).expect("a field");
        let warnings =
            config.boot_lines.iter().filter(|l| l.level == Level::Warn && l.message.contains("PG_SSL")).count();
        (trust.clone(), field("ssl_trust"), field("ssl_verified"), warnings)
    };
    let (h, on, no) = (("PG_HOST", "h"), ("PG_USE_SSL", "true"), ("PG_SSL_REJECT_UNAUTHORIZED", "false"));
    let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let want = |trust, (name, verified): (String, String), warnings| (trust, name, verified, warnings);
    assert_eq!(trust(&[h]), want(None, text("plaintext", "false"), 0));
    assert_eq!(
        trust(&[h, ("DATABASE_URL", "postgres://h/d?sslmode=prefer")]),
        want(None, text("plaintext", "false"), 0)
    );
    assert_eq!(trust(&[h, on]), want(Some(postgres::Trust::PublicRoots), text("webpki-roots", "true"), 0));
    let required = ("DATABASE_URL", "postgres://h/d?sslmode=require");
    assert_eq!(trust(&[required]), want(Some(postgres::Trust::PublicRoots), text("webpki-roots", "true"), 0));
    assert_eq!(trust(&[h, on, no]), want(Some(postgres::Trust::Anything), text("accept-any", "false"), 1));
    let supplied = Some(postgres::Trust::Ca(ca.into()));
    assert_eq!(trust(&[h, on, ("PG_SSL_ROOT_CERT", ca)]), want(supplied.clone(), text("supplied-ca", "true"), 0));
    assert_eq!(trust(&[h, on, no, ("PG_SSL_ROOT_CERT", ca)]), want(supplied, text("supplied-ca", "true"), 1));
}

#[test]
fn certificate_and_key_belong_together() {
    assert!(ok(&[("QUEEN_TLS_CERT", "a"), ("QUEEN_TLS_KEY", "b")]).tls.is_some());
    fatal(&[("QUEEN_TLS_CERT", "a")], "belong together");
    fatal(&[("QUEEN_TLS_KEY", "a")], "belong together");
}

#[test]
fn authentication_needs_a_key_that_fits_its_algorithm() {
    fatal(&[("JWT_ENABLED", "1")], "JWT_ALGORITHM=HS256 needs JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL");
    fatal(
        &[("JWT_ENABLED", "1"), ("JWT_ALGORITHM", "EdDSA"), ("JWT_SECRET", "x")],
        "needs JWT_PUBLIC_KEY or JWT_JWKS_URL",
    );
    fatal(&[("JWT_ENABLED", "1"), ("JWT_ALGORITHM", "PS256"), ("JWT_SECRET", "x")], "is not an algorithm");
    let jwt = |vars: &[(&str, &str)]| ok(vars).jwt.expect("it is on");
    assert_eq!(jwt(&[("JWT_ENABLED", "1"), ("JWT_SECRET", "x")]).algorithms.len(), 1);
    assert_eq!(jwt(&[("JWT_ENABLED", "1"), ("JWT_ALGORITHM", "RS256"), ("JWT_JWKS_URL", "x")]).algorithms.len(), 3);
    assert_eq!(jwt(&[("JWT_ENABLED", "1"), ("JWT_ALGORITHM", "auto"), ("JWT_SECRET", "x")]).algorithms.len(), 7);
    assert!(jwt(&[("JWT_ENABLED", "1"), ("JWT_SECRET", "x"), ("JWT_SKIP_PATHS", "")]).skip_paths.is_empty());
    assert!(ok(&[("JWT_ALGORITHM", "nonsense")]).jwt.is_none(), "nothing is judged while it is off");
}

#[test]
fn a_tenant_header_needs_a_proxy_that_guards_it() {
    fatal(&[("QUEEN_TENANCY_HEADER", "on")], "without QUEEN_KV_TRUSTED_PROXY");
    assert!(ok(&[("QUEEN_TENANCY_HEADER", "on"), ("QUEEN_KV_TRUSTED_PROXY", "on")]).tenancy);
    assert!(!ok(&[("QUEEN_KV_TRUSTED_PROXY", "on")]).tenancy);
}

#[test]
fn an_open_port_without_authentication_is_one_warning_at_each_boot() {
    let warned = |vars: &[(&str, &str)]| {
        let lines = ok(vars).boot_lines;
        lines.iter().filter(|l| l.level == Level::Warn && l.message.contains("whoever reaches the port")).count()
    };
    for open in ["0.0.0.0", "10.0.0.1", "::", "[::]", "broker.example"] {
        assert_eq!(warned(&[("QUEEN_BIND_ADDR", open)]), 1, "{open}");
        assert_eq!(warned(&[("QUEEN_BIND_ADDR", open), ("JWT_ENABLED", "1"), ("JWT_SECRET", "x")]), 0, "{open}");
    }
    for closed in ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"] {
        assert_eq!(warned(&[("QUEEN_BIND_ADDR", closed)]), 0, "{closed}");
    }
    assert_eq!(warned(&[]), 0);
}

#[test]
fn a_root_certificate_is_checked_even_without_tls() {
    for bad in
        ["nonsense", "-----BEGIN CERTIFICATE-----\nMII", "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----"]
    {
        fatal(&[("PG_SSL_ROOT_CERT", bad)], "not valid PEM");
    }
    ok(&[("PG_SSL_ROOT_CERT", &include_str!("../../tests/keys/ca.pem").replace('\n', "\\n"))]);
}

#[test]
fn a_malformed_encryption_key_starts_and_warns() {
    let config = ok(&[("QUEEN_ENCRYPTION_KEY", "short")]);
    let line = config.boot_lines.iter().find(|l| l.target == "encryption").unwrap();
    assert_eq!(line.message, "QUEEN_ENCRYPTION_KEY must be 64 hex chars; encryption DISABLED");
    for bad in ["", "short", &"g".repeat(64)] {
        fatal(&[("QUEEN_ENCRYPTION_KEY", bad), ("QUEEN_ENCRYPTION_REQUIRED", "1")], "there is no usable key");
    }
    let good = ok(&[("QUEEN_ENCRYPTION_KEY", &"0a".repeat(32)), ("QUEEN_ENCRYPTION_REQUIRED", "1")]);
    assert!(matches!(good.encryption, Key::Usable(_)));
    assert!(!format!("{:?}", good.boot_lines).contains("0a0a"));
}

#[test]
fn secrets_are_printed_by_length_only() {
    let config = ok(&[
        ("PG_PASSWORD", "hunter2"),
        ("JWT_SECRET", "hunter22"),
        ("DATABASE_URL", "postgres://u:hunter2@h/d"),
        ("QUEEN_SYNC_SECRET", ""),
    ]);
    let text = format!("{:?}", config.boot_lines);
    assert!(!text.contains("hunter"), "{text}");
    assert!(text.contains("<set:7 chars>") && text.contains("<set:8 chars>") && text.contains("<unset>"));
}

#[test]
fn boot_prints_one_line_per_subsystem() {
    let config = Config::for_tests();
    let want = ["server", "postgres", "auth", "sync", "engine", "flow", "jobs", "file_buffer", "security", "logging"];
    let got: Vec<_> = config.boot_lines.iter().filter_map(|l| l.message.strip_prefix("config: ")).collect();
    assert_eq!(got, want);
    let server = &config.boot_lines[0].fields;
    assert!(server.contains(&("port".into(), "6632".into())), "{server:?}");
    assert!(server.contains(&("queen_data_dir".into(), "/var/lib/queen".into())), "{server:?}");
}

#[test]
fn obsolete_and_inert_names_are_listed_not_refused() {
    let config = ok(&[
        ("NUM_WORKERS", "4"),
        ("QUEEN_PUSH_MAX_HOLD_MS", "x"),
        ("QUEEN_V2_FUSION_FRAMES", "9"),
        ("QUEEN_KV_MAX_KEY_BYTES", "9"),
        ("QUEEN_KV_ENABLED", "1"),
        ("QUEEN_MESH_PORT", "1"),
        ("SOMETHING_ELSE", "1"),
    ]);
    let names = |text: &str| {
        let line = config.boot_lines.iter().find(|l| l.message.contains(text)).unwrap();
        line.fields[0].1.clone()
    };
    assert_eq!(names("0.x generation"), "NUM_WORKERS,QUEEN_KV_ENABLED,QUEEN_PUSH_MAX_HOLD_MS");
    assert_eq!(names("without effect"), "QUEEN_KV_MAX_KEY_BYTES,QUEEN_V2_FUSION_FRAMES");
    assert_eq!(names("does not have yet"), "QUEEN_MESH_PORT");
}

#[test]
fn data_goes_to_the_xdg_directory_unless_root() {
    let dir = |vars: &[(&str, &str)], root| {
        let vars = vars.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Config::from_vars(&vars, root).map(|c| c.data_dir.display().to_string())
    };
    assert_eq!(dir(&[("HOME", "/home/ann")], true).unwrap(), "/var/lib/queen");
    assert_eq!(dir(&[("HOME", "/home/ann")], false).unwrap(), "/home/ann/.local/share/queen");
    assert_eq!(dir(&[("HOME", "/home/ann"), ("XDG_DATA_HOME", "/data")], false).unwrap(), "/data/queen");
    assert_eq!(dir(&[("QUEEN_DATA_DIR", "/q")], false).unwrap(), "/q");
    assert!(dir(&[], false).is_err());
    assert!(dir(&[("PG_HOST", "h")], false).is_ok());
}

#[test]
fn names_are_unique_and_only_booleans_have_no_range() {
    let mut names: Vec<_> = settings::rows().map(|row| row.name).collect();
    names.sort();
    names.windows(2).for_each(|two| assert_ne!(two[0], two[1]));
}

/// `QUEEN_REGENERATE=1 cargo test --lib config` writes the page.
#[test]
fn docs_settings_md_is_printed_from_the_rows() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/settings.md");
    let want = report::settings_md();
    if std::env::var_os("QUEEN_REGENERATE").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).unwrap();
        std::fs::write(path, &want).unwrap();
    }
    let got = std::fs::read_to_string(path).unwrap_or_default();
    assert!(got == want, "docs/settings.md is not what the rows say; QUEEN_REGENERATE=1 writes it");
}

/// Every reason of this room not to start has its remedy in docs/errors.md.
#[test]
fn docs_errors_md_knows_every_fatal_text() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/errors.md")).expect("docs/errors.md");
    for text in [
        "is not a boolean (expected true/false, 1/0, yes/no, on/off)",
        "is out of range (expected",
        "is not a number",
        "is not a port (expected 0 to 65535)",
        "QUEEN_BIND_ADDR is empty",
        "carries a port (set PORT for that)",
        "is not a driver",
        "is not a mode",
        "DATABASE_URL cannot be read",
        "DATABASE_URL asks for channel binding",
        "QUEEN_TLS_CERT and QUEEN_TLS_KEY belong together",
        "JWT_ENABLED is on, but no key is set",
        "is not an algorithm",
        "QUEEN_TENANCY_HEADER is on without QUEEN_KV_TRUSTED_PROXY",
        "QUEEN_ENCRYPTION_REQUIRED is on, but there is no usable key",
        "PG_SSL_ROOT_CERT is not valid PEM certificate material",
        "QUEEN_DATA_DIR is unset, and neither XDG_DATA_HOME nor HOME says where data may go",
    ] {
        assert!(page.contains(text), "{text}");
    }
}

/// Two brokers of one host with a database of their own server share the default, and the second one is told so: see
/// `tests/outage/outage.rs`.
#[test]
fn the_spool_lies_with_the_embedded_database_else_in_one_place_of_the_host() {
    let spool = |vars: &[(&str, &str)]| ok(vars).spool_dir.display().to_string();
    assert_eq!(spool(&[("QUEEN_DATA_DIR", "/srv/q")]), "/srv/q/buffers");
    assert_eq!(spool(&[("QUEEN_DATA_DIR", "/srv/q"), ("PG_HOST", "db")]), "/var/lib/queen/buffers");
    assert_eq!(spool(&[("PG_HOST", "db"), ("FILE_BUFFER_DIR", "/srv/spool")]), "/srv/spool");
}

/// What holds on a terminal is said where the default is.
#[test]
fn the_row_of_the_log_level_says_what_holds_on_a_terminal() {
    let row = settings::rows().find(|row| row.name == "LOG_LEVEL").expect("a row");
    assert!(row.reason.contains(&format!("`{ON_A_TERMINAL}`")), "{}", row.reason);
}
