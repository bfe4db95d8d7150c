//! Policy files: accepted forms, and refusals with line and column.

use std::time::{Duration, Instant};
use tollgate::policy::conditional::LoadMetric;
use tollgate::{Ask, Cost, Eviction, Inherit, LimiterExt, ManualClock, Order, Quota, Reason, SlidingLog};
use tollgate_config::{Format, LegKind, LegSpec, PolicySetSpec, PolicySpec, Reload, When, load, parse};

const FULL: &str = r#"
max_wait = "10s"
eviction = "oldest"
order = { priority = { classes = 3, patience = 16 } }
max_queue = 500
lateness = "1ms"

[[leg]]
name = "requests"
kind = "token-bucket"
quota = "3000/min burst 100"
per = "call"
inherit = "proportional"

[[leg]]
name = "tokens"
kind = "token-bucket"
quota = "90000/min"
per = "tokens"

[[leg]]
name = "bursts"
kind = "sliding-window"
limit = 30
window = "10s"
segments = 10
inherit = "proportional"

[[leg]]
name = "in flight"
kind = "semaphore"
limit = 24

[[leg]]
name = "batch"
kind = "leaky-bucket"
quota = "5/s"
slack = 2
shadow = true
when = { load_of = "in flight", metric = "use", above = 0.8, below = 0.6 }

"#;

const FULL_JSON: &str = r#"{
    "max_wait": "10s", "max_queue": 500, "lateness": "1ms", "eviction": "oldest",
    "order": { "priority": { "classes": 3, "patience": 16 } },
    "leg": [
        { "name": "requests", "kind": "token-bucket", "quota": "3000/min burst 100", "inherit": "proportional" },
        { "name": "tokens", "kind": "token-bucket", "quota": "90000/min", "per": "tokens" },
        { "name": "bursts", "kind": "sliding-window", "limit": 30, "window": "10s", "segments": 10, "inherit": "proportional" },
        { "name": "in flight", "kind": "semaphore", "limit": 24 },
        { "name": "batch", "kind": "leaky-bucket", "quota": "5/s", "slack": 2, "shadow": true,
          "when": { "load_of": "in flight", "metric": "use", "above": 0.8, "below": 6e-1 } }
    ]
}"#;

fn full() -> PolicySpec {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    let mut spec = PolicySpec::new([
        LegSpec {
            inherit: Inherit::Proportional,
            ..LegSpec::new(
                "requests",
                LegKind::TokenBucket {
                    quota: quota("3000/min burst 100"),
                },
            )
        },
        LegSpec {
            per: Some("tokens".into()),
            ..LegSpec::new(
                "tokens",
                LegKind::TokenBucket {
                    quota: quota("90000/min"),
                },
            )
        },
        LegSpec {
            inherit: Inherit::Proportional,
            ..LegSpec::new(
                "bursts",
                LegKind::SlidingWindow {
                    limit: 30,
                    window: Duration::from_secs(10),
                    segments: 10,
                },
            )
        },
        LegSpec::new("in flight", LegKind::Semaphore { limit: 24 }),
        LegSpec {
            shadow: true,
            when: Some(When {
                below: Some(0.6),
                ..When::above("in flight", LoadMetric::Use, 0.8)
            }),
            ..LegSpec::new(
                "batch",
                LegKind::LeakyBucket {
                    quota: quota("5/s"),
                    slack: 2,
                },
            )
        },
    ]);
    spec.max_wait = Some(Duration::from_secs(10));
    spec.max_queue = Some(500);
    spec.lateness = Some(Duration::from_millis(1));
    spec.eviction = Eviction::Oldest;
    spec.order = Order::Priority {
        classes: 3,
        patience: 16,
    };
    spec
}

/// Given each kind of order in a file, then the policy has that order, and no version can change it.
#[test]
fn a_file_names_the_order_of_the_queue_for_good() {
    let read = |head: &str| {
        let text = format!("{head}\n[[leg]]\nname = \"one\"\nkind = \"semaphore\"\nlimit = 1\n");
        parse::<PolicySpec>(&text, Format::Toml).unwrap()
    };
    let clock = ManualClock::new();
    let orders = [
        ("", Order::Fifo),
        ("order = \"fifo\"", Order::Fifo),
        ("order = \"lifo\"", Order::Lifo),
        ("order = \"round-robin\"", Order::RoundRobin),
        ("order = { shares = [8, 4, 1] }", Order::Shares(vec![8, 4, 1])),
    ];
    for (text, order) in orders {
        assert_eq!(read(text).order, order);
    }
    let policy = read("order = { priority = { classes = 2, patience = 9 } }")
        .build(&clock)
        .unwrap();
    for changed in ["", "eviction = \"oldest\"", "work_time = \"1s\""] {
        let text = match changed {
            "" => String::new(),
            other => format!("order = {{ priority = {{ classes = 2, patience = 9 }} }}\n{other}"),
        };
        let refused = policy.apply(read(&text)).unwrap_err();
        assert!(refused.fault().contains("stays as the policy was built"), "{refused}");
    }
    clock.run(async {
        let held = policy.admit(1).await.unwrap();
        let order = std::cell::RefCell::new(Vec::new());
        let call = async |class: u64| {
            drop(policy.admit(Ask::one().class(class)).await.unwrap());
            order.borrow_mut().push(class);
        };
        futures::join!(call(1), call(0), async { drop(held) });
        assert_eq!(order.into_inner(), [0, 1]);
    });
}

#[test]
fn a_full_file_reads_as_it_is_written() {
    assert_eq!(parse::<PolicySpec>(FULL, Format::Toml), Ok(full()));
}

#[test]
fn toml_and_json_are_one_grammar() {
    assert_eq!(parse::<PolicySpec>(FULL_JSON, Format::Json), Ok(full()));
}

#[test]
fn every_kind_can_be_written_and_built() {
    let legs = [
        "kind = 'token-bucket'\nquota = '10/s'",
        "kind = 'leaky-bucket'\nquota = '10/s'",
        "kind = 'warmup'\nquota = '10/s'\nperiod = '10s'\ncold_factor = 2",
        "kind = 'fixed-window'\nlimit = 10\nwindow = '1m'",
        #[cfg(feature = "calendar")]
        "kind = 'calendar-window'\nlimit = 10\nperiod = 'day'\ntime_zone = 'Asia/Kathmandu'",
        "kind = 'sliding-window'\nlimit = 'unlimited'\nwindow = '1m'",
        "kind = 'sliding-log'\nlimit = 10\nwindow = '1m'",
        "kind = 'semaphore'\nlimit = 3",
        #[cfg(feature = "resilience")]
        "kind = 'breaker'\ntime_window = '1m'\nfailure_rate = 0.25\nslow_after = '2s'\nslow_rate = 1\nopen_for = '5s'\nprobes = 3",
        #[cfg(feature = "resilience")]
        "kind = 'adaptive'\nlaw = 'vegas'",
        #[cfg(feature = "resilience")]
        "kind = 'adaptive'\nquota = '100/s burst 10'\nceiling = 500",
    ];
    for leg in legs {
        let spec = parse::<PolicySpec>(&format!("[[leg]]\nname = 'x'\n{leg}"), Format::Toml).unwrap();
        let kind = spec.legs[0].kind.name();
        assert!(leg.starts_with(&format!("kind = '{kind}'")), "{leg}");
        let policy = spec.build(&ManualClock::new()).unwrap();
        assert!(policy.try_admit(Ask::one()).is_ok(), "{kind}");
    }
}

#[cfg(feature = "calendar")]
#[test]
fn a_calendar_window_says_what_it_takes() {
    const DAILY: &str = "[[leg]]\nname = 'budget'\nkind = 'calendar-window'\nlimit = 5\nperiod = 'day'\n";
    for (text, line, column, words) in [
        (
            "time_zone = 'Europe/Berlim'\n",
            6,
            13,
            "the time zone `Europe/Berlim` was given, and a name of the IANA",
        ),
        ("time_zone = 2\n", 6, 13, "2 was given, and a text is allowed"),
        ("window = '1d'\n", 6, 1, "`window` is unknown here"),
        (
            "period = 'year'",
            5,
            10,
            "`year` was given, and one of hour, day, week, month is allowed",
        ),
        ("", 1, 1, "`period` is missing: a length"),
    ] {
        let text = match text {
            "" => DAILY.replace("period = 'day'\n", ""),
            "period = 'year'" => DAILY.replace("period = 'day'", text),
            more => format!("{DAILY}{more}"),
        };
        let error = parse::<PolicySpec>(&text, Format::Toml).expect_err(&text);
        assert_eq!((error.line(), error.column()), (Some(line), Some(column)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // By midnight in Berlin, 23 hours ahead. A version with another limit keeps the count, one with another zone does not.
    let clock = ManualClock::new();
    clock.set_wall(std::time::UNIX_EPOCH + Duration::from_secs(1_774_738_800));
    let berlin = format!("{DAILY}time_zone = 'Europe/Berlin'\n");
    let version = |text: &str| parse::<PolicySpec>(text, Format::Toml).unwrap();
    let policy = version(&berlin).build(&clock).unwrap();
    policy.try_admit(5).unwrap().forget();
    let day = Duration::from_secs(23 * 3_600);
    assert_eq!(policy.try_admit(1).unwrap_err().retry_after(), Some(day));
    policy
        .apply(version(&berlin.replace("limit = 5", "limit = 7\ninherit = 'as-is'")))
        .unwrap();
    policy.try_admit(2).unwrap().forget();
    assert_eq!(policy.try_admit(1).unwrap_err().retry_after(), Some(day));
    policy.apply(version(DAILY)).unwrap();
    assert!(policy.try_admit(5).is_ok());
}

#[cfg(not(feature = "calendar"))]
#[test]
fn a_kind_that_is_left_out_says_its_feature() {
    let text = "[[leg]]\nname = 'budget'\nkind = 'calendar-window'\nlimit = 5\nperiod = 'day'\n";
    let error = parse::<PolicySpec>(text, Format::Toml).unwrap_err();
    assert_eq!(
        error.to_string(),
        "text:3:8: key `kind`: `calendar-window` needs the feature `calendar` of tollgate-config"
    );
}

/// Given a file whose legs count calls and a named cost, when it is built, then each leg counts what it says, refuses under
/// its name, and an unknown cost is refused.
#[test]
fn a_file_becomes_a_policy() {
    let clock = ManualClock::new();
    let policy = parse::<PolicySpec>(FULL, Format::Toml).unwrap().build(&clock).unwrap();
    let ask = Ask::one().cost(Cost::new("tokens"), 45_000);
    let first = policy.try_admit(ask).unwrap();
    let second = policy.try_admit(ask).unwrap();
    let refused = policy.try_admit(ask).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), ("tokens", Reason::RateExceeded));
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(30)));
    let unpriced = policy.try_admit(Ask::one()).unwrap_err();
    assert_eq!((unpriced.leg(), unpriced.reason()), ("tokens", Reason::Unpriced));
    assert_eq!(policy.limiter().in_use("in flight"), Some(2));
    drop((first, second));
}

const HEAD: &str = "[[leg]]\nname = \"a\"\n";

/// A bad file: its text, the line and the column of the mistake, and words of the error.
const BAD: &[(&str, usize, usize, &str)] = &[
    ("order = \"priority\"\n", 1, 9, "a table is allowed"),
    ("order = 3\n", 1, 9, "3 was given, and one of fifo"),
    ("order = { lifo = {}, fifo = {} }\n", 1, 9, "and one of fifo"),
    ("order = { shares = {} }\n", 1, 20, "a list is allowed"),
    (
        "order = { priority = { classes = 2 } }\n",
        1,
        22,
        "`patience` is missing",
    ),
    ("order = \"share\"\n", 1, 9, "`share` was given, and one of fifo"),
    (
        "order = { priority = { weights = [1], classes = 2 } }\n",
        1,
        24,
        "`weights` is unknown here; allowed: classes, patience",
    ),
    (
        "order = { priority = { classes = 33, patience = 1 } }\n[[leg]]\nname = \"a\"\nkind = \"semaphore\"\nlimit = 1\n",
        1,
        34,
        "33 classes were given, and 1 to 32",
    ),
    (
        "order = { priority = { classes = 3, patience = 0 } }\n[[leg]]\nname = \"a\"\nkind = \"semaphore\"\nlimit = 1\n",
        1,
        48,
        "a patience of 0 was given, and at least 1",
    ),
    (
        "order = { shares = [3, 0] }\n[[leg]]\nname = \"a\"\nkind = \"semaphore\"\nlimit = 1\n",
        1,
        20,
        "a weight of 0 was given, and at least 1",
    ),
    (
        "eviction = \"newest\"\n",
        1,
        12,
        "`newest` was given, and one of never, oldest is allowed",
    ),
    ("", 1, 1, "at least one is needed"),
    ("max_wait = 10\n", 1, 12, "10 was given"),
    (
        "max_wait = 10:00:00\n",
        1,
        12,
        "`10:00:00` was given, and a time such as",
    ),
    (
        "max_queue = 1979-05-27\n",
        1,
        13,
        "`1979-05-27` was given, and a whole number",
    ),
    ("max_queue = nan\n", 1, 13, "NaN was given, and a number is allowed"),
    (
        "max_queue = 170141183460469231731687303715884105728\n",
        1,
        13,
        "was given, and a whole number of 0 to",
    ),
    (
        "max_queue = 999999999999999999999999999999999999999999999999\n",
        1,
        13,
        "integer of too many digits was given, and 38 are allowed",
    ),
    (
        "{HEAD}kind = \"custom\"\n",
        3,
        8,
        "`custom` was given, and one of token-bucket",
    ),
    (
        "max_wait = \"10 parsecs\"\n",
        1,
        12,
        "`10 parsecs` was given, and a time such as",
    ),
    ("max_queue = -1\n", 1, 13, "-1 was given, and a whole number of 0 to"),
    (
        "max_wiat = \"1s\"\n",
        1,
        1,
        "`max_wiat` is unknown here; allowed: max_wait",
    ),
    ("leg = 3\n", 1, 7, "3 was given, and a list is allowed"),
    ("leg = [3]\n", 1, 8, "3 was given, and a table is allowed"),
    ("[[leg]]\nname = \"a\"\n", 1, 1, "`kind` is missing"),
    ("[[leg]]\nkind = \"semaphore\"\nlimit = 1\n", 1, 1, "`name` is missing"),
    (
        "{HEAD}kind = \"bucket\"\n",
        3,
        8,
        "`bucket` was given, and one of token-bucket",
    ),
    (
        "{HEAD}kind = \"token-bucket\"\nqouta = \"1/s\"\n",
        4,
        1,
        "`qouta` is unknown here; allowed: name, kind, per, inherit, shadow, at_once, when, quota",
    ),
    (
        "{HEAD}kind = \"token-bucket\"\nquota = \"1/s\"\nlimit = 3\n",
        5,
        1,
        "`limit` is unknown here",
    ),
    ("{HEAD}kind = \"token-bucket\"\n", 1, 1, "`quota` is missing"),
    (
        "{HEAD}kind = \"token-bucket\"\nquota = \"10/parsec\"\n",
        4,
        13,
        "a unit of time",
    ),
    (
        "{HEAD}kind = \"token-bucket\"\nquota = \"0/s\"\n",
        4,
        9,
        "one per period to one per nanosecond is allowed",
    ),
    (
        "{HEAD}kind = \"token-bucket\"\nquota = \"1/s\"\ninherit = \"copy\"\n",
        5,
        11,
        "`copy` was given, and one of as-is",
    ),
    (
        "{HEAD}kind = \"token-bucket\"\nquota = \"1/s\"\nshadow = 1\n",
        5,
        10,
        "true or false",
    ),
    (
        "{HEAD}kind = \"semaphore\"\nlimit = 1.5\n",
        4,
        9,
        "1.5 was given, and a whole number",
    ),
    (
        "{HEAD}kind = \"semaphore\"\nlimit = 99999999999999999999999\n",
        4,
        9,
        "a whole number of 0 to",
    ),
    (
        "{HEAD}kind = \"sliding-window\"\nlimit = 3\nwindow = \"0s\"\n",
        5,
        10,
        "above zero to 365 days",
    ),
    (
        "{HEAD}kind = \"leaky-bucket\"\nquota = \"1/d\"\nslack = 1000000000000\n",
        5,
        9,
        "584 years",
    ),
    (
        "{HEAD}kind = \"warmup\"\nquota = \"1/s\"\nperiod = \"1s\"\ncold_factor = 101\n",
        6,
        15,
        "1 to 100",
    ),
    (
        "{HEAD}kind = \"semaphore\"\nlimit = 1\n[[leg]]\nname = \"a\"\nkind = \"semaphore\"\nlimit = 1\n",
        6,
        8,
        "`a` is the name of leg 1 already",
    ),
    (
        "{HEAD}kind = \"semaphore\"\nlimit = 1\nwhen = { load_of = \"b\", metric = \"use\", above = 0.5 }\n",
        5,
        20,
        "`b` is no leg",
    ),
    (
        "{HEAD}kind = \"semaphore\"\nlimit = 1\nwhen = { load_of = \"a\", metric = \"use\", above = 0.5 }\n",
        5,
        20,
        "the leg itself",
    ),
    (
        "{HEAD}kind = \"semaphore\"\nlimit = 1\nwhen = { load_of = \"a\", metric = \"mood\", above = 0.5 }\n",
        5,
        34,
        "one of use, rate, latency, refusals",
    ),
    (
        "{HEAD}kind = \"semaphore\"\nlimit = 1\n[[leg]]\nname = \"b\"\nkind = \"token-bucket\"\nquota = \"1/s\"\nwhen = { load_of = \"a\", metric = \"use\", above = 0.5, below = 0.7 }\n",
        9,
        62,
        "0 to 0.5",
    ),
    ("{HEAD}kind = \"semaphore\"\nlimit = = 1\n", 4, 9, ""),
    (
        "{HEAD}kind = \"semaphore\"\nlimit = 1\nlimit = 2\n",
        5,
        1,
        "duplicate key",
    ),
];

#[test]
fn bad_files_are_refused_with_line_and_column() {
    for &(text, line, column, words) in BAD {
        let text = text.replace("{HEAD}", HEAD);
        let error = parse::<PolicySpec>(&text, Format::Toml).expect_err(&text);
        let said = error.to_string();
        assert_eq!(
            (error.line(), error.column()),
            (Some(line), Some(column)),
            "{text}\n{said}"
        );
        assert!(said.contains(words), "{text}\n{said}");
        assert!(said.starts_with(&format!("text:{line}:{column}: ")), "{said}");
    }
}

/// Values of [`FULL`] that are spoilt one at a time: the key, the value, what is put there, how many characters into it the
/// mistake is, and words of the error.
const SPOILT: &[(&str, &str, &str, usize, &str)] = &[
    ("max_wait", r#""10s""#, r#""ten""#, 0, "a time such as"),
    ("max_queue", "500", "-1", 0, "-1 was given"),
    ("lateness", r#""1ms""#, "true", 0, "a time such as"),
    (
        "quota",
        r#""3000/min burst 100""#,
        r#""3000/mix burst 100""#,
        6,
        "a unit of time",
    ),
    (
        "quota",
        r#""3000/min burst 100""#,
        r#""3000/min brust 100""#,
        10,
        "column 10",
    ),
    ("inherit", r#""proportional""#, r#""prop""#, 0, "one of as-is"),
    ("quota", r#""90000/min""#, "90000", 0, "a quota such as"),
    ("per", r#""tokens""#, r#""""#, 0, "it is empty"),
    ("window", r#""10s""#, r#""366days""#, 0, "365 days"),
    ("segments", "10", "0", 0, "1 to 4096 are allowed"),
    ("limit", "24", "24.5", 0, "24.5 was given"),
    ("slack", "2", "1e3", 0, "1000 was given"),
    ("shadow", "true", r#""yes""#, 0, "true or false"),
    ("load_of", r#""in flight""#, r#""in fligth""#, 0, "is no leg"),
    ("load_of", r#""in flight""#, r#""batch""#, 0, "the leg itself"),
    ("metric", r#""use""#, r#""uses""#, 0, "one of use"),
    ("above", "0.8", "-0.8", 0, "at least 0"),
    ("above", "0.8", r#""80%""#, 0, "a number"),
    ("below", "0.6", "0.9", 0, "0 to 0.8"),
    ("kind", r#""semaphore""#, r#""semaphor""#, 0, "one of token-bucket"),
];

/// The line and the column of a byte, counted from one, in characters.
fn place(text: &str, at: usize) -> (Option<usize>, Option<usize>) {
    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let number = text[..at].matches('\n').count() + 1;
    (Some(number), Some(text[line..at].chars().count() + 1))
}

/// In every leg, in tables and rows of tables, in both formats, behind characters of several bytes.
#[test]
fn a_spoilt_value_is_found_where_it_stands() {
    let json = FULL_JSON.replace("6e-1", "0.6");
    for &(key, good, bad, within, words) in SPOILT {
        for (text, is_toml) in [(FULL, true), (json.as_str(), false)] {
            let text = text.replace("in flight", "im Flüge");
            let [good, bad] = [good, bad].map(|value| value.replace("in fli", "im Flü").replace("Flüght", "Flüge"));
            let (key, format) = match is_toml {
                true => (format!("{key} = "), Format::Toml),
                false => (format!("\"{key}\": "), Format::Json),
            };
            let wanted = format!("{key}{good}");
            let Some(found) = text.find(&wanted) else {
                panic!("{wanted} is not there");
            };
            let at = found + key.len();
            let spoilt = format!("{}{bad}{}", &text[..at], &text[at + good.len()..]);
            let error = parse::<PolicySpec>(&spoilt, format).expect_err(&bad);
            assert_eq!(
                (error.line(), error.column()),
                place(&spoilt, at + within),
                "{key}{bad}: {error}"
            );
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}

/// Keys that nothing has, in every table of the file.
#[test]
fn an_unknown_key_is_found_where_it_stands() {
    for (key, value) in [
        ("max_queue", "500"),
        ("inherit", r#""proportional""#),
        ("segments", "10"),
        ("shadow", "true"),
        ("metric", r#""use""#),
    ] {
        for (text, wanted, format) in [
            (FULL, format!("{key} = {value}"), Format::Toml),
            (FULL_JSON, format!("\"{key}\": {value}"), Format::Json),
        ] {
            let at = text.find(&wanted).unwrap();
            let spoilt = format!(
                "{}{}{}",
                &text[..at],
                wanted.replace(key, "pace"),
                &text[at + wanted.len()..]
            );
            let error = parse::<PolicySpec>(&spoilt, format).expect_err(&wanted);
            assert_eq!((error.line(), error.column()), place(&spoilt, at), "{wanted}: {error}");
            assert!(error.to_string().contains("`pace` is unknown here"), "{error}");
        }
    }
}

#[test]
fn bad_json_is_refused_with_line_and_column() {
    let rows = [
        ("", 1, 1, "EOF while parsing a value"),
        ("{\n  \"leg\": [\n", 3, 1, "EOF while parsing a list"),
        ("[]", 1, 1, "a list was given, and a table"),
        ("{\n  \"leg\": [],\n  \"leg\": []\n}", 3, 3, "`leg` is given twice"),
        ("{ \"leg\": [], }", 1, 14, "trailing comma"),
        ("{ \"leg\": null }", 1, 10, "null was given"),
        (
            "{ \"leg\": [\n  { \"name\": \"ä\", \"kind\": \"semaphore\", \"limt\": 3 } ] }",
            2,
            39,
            "`limt` is unknown",
        ),
        (
            "{ \"leg\": [\n  { \"name\": \"ä\", \"kind\": \"semaphore\", \"limit\": 1e3 } ] }",
            2,
            48,
            "1000 was given",
        ),
        ("\n\n  {}", 3, 3, "none was given"),
        ("// no\n{}", 1, 1, "expected value"),
    ];
    for (text, line, column, words) in rows {
        let error = parse::<PolicySpec>(text, Format::Json).expect_err(text);
        let said = error.to_string();
        assert_eq!(
            (error.line(), error.column()),
            (Some(line), Some(column)),
            "{text}\n{said}"
        );
        assert!(said.contains(words), "{text}\n{said}");
    }
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let missing = load::<PolicySpec>(path("policy.toml")).unwrap_err();
    assert_eq!((missing.line(), missing.file().ends_with("policy.toml")), (None, true));

    std::fs::write(path("policy.ini"), FULL).unwrap();
    let odd = load::<PolicySpec>(path("policy.ini")).unwrap_err();
    assert!(odd.to_string().contains("neither `.toml` nor `.json`"), "{odd}");

    std::fs::write(path("latin.toml"), b"# caf\xe9\n").unwrap();
    let latin = load::<PolicySpec>(path("latin.toml")).unwrap_err();
    assert_eq!((latin.line(), latin.column()), (Some(1), Some(6)), "{latin}");

    std::fs::write(path("long.toml"), vec![b'#'; (1 << 20) + 1]).unwrap();
    let long = load::<PolicySpec>(path("long.toml")).unwrap_err();
    assert!(long.to_string().contains("1048576 bytes"), "{long}");

    std::fs::write(path("good.toml"), FULL).unwrap();
    assert_eq!(load::<PolicySpec>(path("good.toml")), Ok(full()));
}

/// They are refused before anything is built, at the leg that is one too many.
#[test]
fn too_many_legs_are_refused_where_they_are_too_many() {
    let leg = |n| format!("[[leg]]\nname = \"{n}\"\nkind = \"token-bucket\"\nquota = \"1/s\"\n");
    let text: String = (0..65).map(leg).collect();
    let error = parse::<PolicySpec>(&text, Format::Toml).unwrap_err();
    assert_eq!(error.line(), Some(64 * 4 + 1), "{error}");
    let fits: String = (0..64).map(leg).collect();
    assert!(parse::<PolicySpec>(&fits, Format::Toml).is_ok());
}

/// By itself, by a rule, and from a policy file.
#[test]
fn a_sliding_log_admits_its_whole_limit_wherever_it_is_built() {
    const LIMIT: u64 = 70_000;
    let clock = ManualClock::new();
    let log = SlidingLog::new(LIMIT, Duration::from_secs(3_600)).unwrap().on(&clock);
    let file = "[[leg]]\nname = 'log'\nkind = 'sliding-log'\nlimit = 70000\nwindow = '1h'";
    let specs = [
        PolicySpec::new([LegSpec::new(
            "log",
            LegKind::SlidingLog {
                limit: LIMIT,
                window: Duration::from_secs(3_600),
            },
        )]),
        parse::<PolicySpec>(file, Format::Toml).unwrap(),
    ];
    let policies = specs.map(|spec| spec.build(&clock).unwrap());
    for admission in 0..LIMIT {
        // An instant of its own, and so an entry.
        clock.advance(Duration::from_nanos(1));
        log.try_acquire(1).unwrap();
        for policy in &policies {
            assert!(policy.try_admit(1).is_ok(), "admission {admission}");
        }
    }
    assert!(log.try_acquire(1).is_err());
}

/// Files of an attacker end in an error within a second, and in no panic.
#[test]
fn a_hostile_file_ends_in_an_error_soon() {
    let leg = "{ \"name\": \"a\", \"kind\": \"semaphore\", \"limit\": 1 }";
    let deep = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    let rows = [
        ("deep lists", Format::Json, deep("[", "]")),
        ("deep tables", Format::Json, deep("{\"a\":", "}")),
        (
            "deep lists in a key",
            Format::Json,
            format!("{{\"leg\": {}}}", deep("[", "]")),
        ),
        ("deep lists of TOML", Format::Toml, format!("leg = {}", deep("[", "]"))),
        (
            "deep tables of TOML",
            Format::Toml,
            format!("leg = {}", deep("{a=", "}")),
        ),
        ("a deep path", Format::Toml, format!("[{}a]", "a.".repeat(200_000))),
        (
            "keys twice",
            Format::Json,
            format!("{{\"leg\": [], {}\"leg\": []}}", "\"leg\": [],".repeat(50_000)),
        ),
        (
            "many keys",
            Format::Toml,
            (0..80_000).map(|n| format!("k{n} = 1\n")).collect(),
        ),
        (
            "many legs",
            Format::Json,
            format!("{{\"leg\": [{leg}{}]}}", format!(", {leg}").repeat(20_000)),
        ),
        ("NUL", Format::Toml, "\0".repeat(1_000)),
        ("NUL in a text", Format::Json, "{\"leg\": \"\0\"}".into()),
        (
            "a long number",
            Format::Toml,
            format!("max_queue = {}", "9".repeat(500_000)),
        ),
        (
            "a long number of JSON",
            Format::Json,
            format!("{{\"max_queue\": {}}}", "9".repeat(500_000)),
        ),
        ("a huge real", Format::Json, "{\"max_queue\": 1e999999}".into()),
        (
            "a long time",
            Format::Toml,
            format!("max_wait = \"{}s\"", "9".repeat(500_000)),
        ),
        (
            "a long quota",
            Format::Toml,
            format!(
                "[[leg]]\nname='a'\nkind='token-bucket'\nquota='{}/s'",
                "9".repeat(500_000)
            ),
        ),
        ("half a character", Format::Json, "{\"leg\": \"\\ud800\"}".into()),
    ];
    for (name, format, text) in rows {
        let begun = Instant::now();
        let one = parse::<PolicySpec>(&text, format);
        let set = parse::<PolicySetSpec>(&text, format);
        assert!(one.is_err() && set.is_err(), "{name}");
        // Twice. Without optimisation, and beside other tests, a parser takes ten times as long; what is quadratic takes minutes.
        let bound = Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 2 });
        assert!(begun.elapsed() < bound, "{name}: {:?}", begun.elapsed());
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["long.toml", "long.json"] {
        std::fs::write(folder.path().join(name), vec![b'['; 10 << 20]).unwrap();
        let error = load::<PolicySpec>(folder.path().join(name)).unwrap_err();
        assert!(error.to_string().contains("1048576 bytes"), "{error}");
    }
}
