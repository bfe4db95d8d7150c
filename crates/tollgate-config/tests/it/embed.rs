//! Policies within a configuration of a user's own.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tollgate::{Inherit, LimiterExt, ManualClock, Quota};
use tollgate_config::{LegKind, PolicySpec};

#[derive(Debug, Deserialize, Serialize)]
struct AppConfig {
    port: u16,
    retries: Quota,
    upstream: PolicySpec,
}

const TEXT: &str = r#"
port = 8080
retries = { count = 10, per = "1s", burst = 3 }

[upstream]
max_wait = "1m 30s"

[[upstream.leg]]
name = "requests"
quota = "6000/min burst 200"
inherit = "proportional"
kind = "token-bucket"
"#;

/// Given a configuration that another crate loads from TOML and the environment, then a policy in it is as any other value: its kind may
/// stand behind its numbers, and the environment changes one of them.
#[test]
fn a_policy_stands_in_a_foreign_configuration() {
    use figment::Figment;
    use figment::providers::{Env, Format, Toml};
    figment::Jail::expect_with(|jail| {
        jail.create_file("app.toml", TEXT)?;
        jail.set_env("APP_UPSTREAM__MAX_QUEUE", 7);
        let figment = Figment::new()
            .merge(Toml::file("app.toml"))
            .merge(Env::prefixed("APP_").split("__"));
        let config: AppConfig = figment.extract()?;
        assert_eq!((config.port, config.retries), (8080, Quota::per_second(10).burst(3)));
        let spec = &config.upstream;
        assert_eq!(
            (spec.max_queue, spec.max_wait),
            (Some(7), Some(Duration::from_secs(90)))
        );
        assert_eq!(spec.legs[0].inherit, Inherit::Proportional);
        assert_eq!(
            spec.legs[0].kind,
            LegKind::TokenBucket {
                quota: "6000/min burst 200".parse().unwrap()
            }
        );
        let policy = spec.build(&ManualClock::new()).unwrap();
        assert!(policy.try_admit(200).is_ok() && policy.try_admit(1).is_err());

        jail.create_file("app.toml", &TEXT.replace("quota", "qouta"))?;
        let wrong = Figment::new()
            .merge(Toml::file("app.toml"))
            .extract::<AppConfig>()
            .unwrap_err();
        assert!(wrong.to_string().contains("qouta"), "{wrong}");
        Ok(())
    });
}

#[test]
fn a_policy_that_is_written_reads_as_it_was() {
    let config: AppConfig = toml::from_str(TEXT).unwrap();
    let text = toml::to_string(&config).unwrap();
    let again: AppConfig = toml::from_str(&text).unwrap();
    assert_eq!(
        (again.upstream, again.retries),
        (config.upstream, config.retries),
        "{text}"
    );
}

/// The schema knows every key that a full file has.
#[cfg(feature = "schema")]
#[test]
fn the_schema_knows_the_keys_and_the_kinds() {
    use tollgate_config::PolicySetSpec;
    let schema = serde_json::to_string(&schemars::schema_for!(PolicySetSpec)).unwrap();
    for word in [
        "max_wait",
        "keyed",
        "token-bucket",
        "sliding-log",
        "quota",
        "load_of",
        "tier",
        "guaranteed",
        "patience",
    ] {
        assert!(schema.contains(&format!("\"{word}\"")), "{word}: {schema}");
    }
}
