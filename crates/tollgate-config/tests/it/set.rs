//! The policies of a service: a file of several, a policy for each key by its tier, and versions of all.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tollgate::policy::conditional::LoadMetric;
use tollgate::{Ask, Clock, Eviction, LimiterExt, ManualClock, Order, Outcome, Semaphore};
use tollgate_config::{
    ConfigError, FileSource, Format, KeyTier, KeyedSpec, Kinds, LegKind, LegSpec, PartitionsSpec, PolicySet,
    PolicySetSpec, PolicySpec, Reload, ReloadablePolicy, ShareSpec, When, parse,
};

fn bucket(name: &str, quota: &str) -> LegSpec {
    LegSpec::new(
        name,
        LegKind::TokenBucket {
            quota: quota.parse().unwrap(),
        },
    )
}

fn semaphore(name: &str, limit: usize) -> LegSpec {
    LegSpec::new(name, LegKind::Semaphore { limit })
}

fn policy(legs: impl IntoIterator<Item = LegSpec>) -> PolicySpec {
    PolicySpec::new(legs)
}

/// A policy `global`, and tenants: free ones with 2 requests, paid ones with 5.
fn service() -> PolicySetSpec {
    let mut tenants = KeyedSpec::new(100, "free", policy([bucket("requests", "zero burst 2")]));
    let paid = policy([bucket("requests", "zero burst 5"), semaphore("in flight", 4)]);
    tenants.tiers.insert("paid".into(), paid);
    tenants.keys.insert("acme".into(), KeyTier::Named("paid".into()));
    PolicySetSpec {
        policies: [("global".into(), policy([semaphore("in flight", 24)]))].into(),
        keyed: [("tenant".into(), tenants)].into(),
        ..PolicySetSpec::default()
    }
}

fn tenants(spec: &mut PolicySetSpec) -> &mut KeyedSpec {
    spec.keyed.get_mut("tenant").unwrap()
}

fn tenant(set: &PolicySet, key: &str) -> Arc<ReloadablePolicy> {
    set.keyed("tenant").unwrap().get(key).unwrap()
}

fn available(policy: &ReloadablePolicy, leg: &str) -> u64 {
    policy.limiter().leg(leg).unwrap().available().unwrap()
}

fn apply(set: &PolicySet, spec: &PolicySetSpec) -> u64 {
    set.apply(spec.clone()).unwrap()
}

const FULL: &str = r#"
[policy.global]
max_wait = "5s"
[[policy.global.leg]]
name = "in flight"
kind = "semaphore"
limit = 24

[policy."a.b"]
leg = [{ name = "x", kind = "semaphore", limit = 1 }]

[keyed.tenant]
max_keys = 100000
default = "free"
[[keyed.tenant.tier.free.leg]]
name = "requests"
kind = "token-bucket"
quota = "60/min"
[keyed.tenant.tier.paid]
max_queue = 9
[[keyed.tenant.tier.paid.leg]]
name = "requests"
kind = "token-bucket"
quota = "6000/min"

[keyed.tenant.keys]
acme = "paid"
"initech.com" = { leg = [{ name = "requests", kind = "token-bucket", quota = "1/h" }] }
"#;

const FULL_JSON: &str = r#"{
    "policy": {
        "global": { "max_wait": "5s", "leg": [{ "name": "in flight", "kind": "semaphore", "limit": 24 }] },
        "a.b": { "leg": [{ "name": "x", "kind": "semaphore", "limit": 1 }] }
    },
    "keyed": { "tenant": {
        "max_keys": 100000, "default": "free",
        "tier": {
            "free": { "leg": [{ "name": "requests", "kind": "token-bucket", "quota": "60/min" }] },
            "paid": { "max_queue": 9, "leg": [{ "name": "requests", "kind": "token-bucket", "quota": "6000/min" }] }
        },
        "keys": {
            "acme": "paid",
            "initech.com": { "leg": [{ "name": "requests", "kind": "token-bucket", "quota": "1/h" }] }
        }
    } }
}"#;

fn full() -> PolicySetSpec {
    let mut global = policy([semaphore("in flight", 24)]);
    global.max_wait = Some(Duration::from_secs(5));
    let mut paid = policy([bucket("requests", "6000/min")]);
    paid.max_queue = Some(9);
    let mut tenants = KeyedSpec::new(100_000, "free", policy([bucket("requests", "60/min")]));
    tenants.tiers.insert("paid".into(), paid);
    let own = policy([bucket("requests", "1/h")]);
    tenants.keys = [
        ("acme".to_owned(), KeyTier::Named("paid".into())),
        ("initech.com".to_owned(), KeyTier::Own(own)),
    ]
    .into();
    PolicySetSpec {
        policies: [
            ("global".to_owned(), global),
            ("a.b".to_owned(), policy([semaphore("x", 1)])),
        ]
        .into(),
        keyed: [("tenant".to_owned(), tenants)].into(),
        ..PolicySetSpec::default()
    }
}

#[test]
fn toml_and_json_of_a_service_are_one_grammar() {
    assert_eq!(parse::<PolicySetSpec>(FULL, Format::Toml), Ok(full()));
    assert_eq!(parse::<PolicySetSpec>(FULL_JSON, Format::Json), Ok(full()));
}

/// The head of a map of tenants with the tier `free`, in eight lines.
const TENANTS: &str = "[keyed.tenant]\nmax_keys = 9\ndefault = \"free\"\n[[keyed.tenant.tier.free.leg]]\nname = \"a\"\n\
                       kind = \"semaphore\"\nlimit = 1\n[keyed.tenant.keys]\n";

#[test]
fn a_mistake_in_a_file_of_a_service_has_its_line_and_column() {
    let leg = "name = \"a\"\nkind = \"semaphore\"\nlimit = 1\n";
    let rows: [(String, usize, usize, &str); 22] = [
        (
            format!("[[policy.a.leg]]\n{leg}[policy.b]\n"),
            5,
            1,
            "key `leg`: none was given",
        ),
        (String::new(), 1, 1, "key `policy`: none was given"),
        (
            format!("[[leg]]\n{leg}"),
            1,
            3,
            "`leg` is unknown here; allowed: policy, keyed",
        ),
        ("policy = 3\n".into(), 1, 10, "3 was given, and a table"),
        ("[policy]\nglobal = 3\n".into(), 2, 10, "3 was given, and a table"),
        ("[policy.global]\n".into(), 1, 1, "none was given, and at least one"),
        (
            "[policy.global]\nmax_wiat = 1\n".into(),
            2,
            1,
            "`max_wiat` is unknown here",
        ),
        (
            format!("[[policy.\"a.b\".leg]]\n{leg}[[policy.\"a.b\".leg]]\n{leg}"),
            6,
            8,
            "`a` is the name of leg 1 already",
        ),
        (
            format!("[[policy.global.leg]]\n{leg}limt = 1\n"),
            5,
            1,
            "`limt` is unknown",
        ),
        (format!("[policy.a]\n[policy.a]\n{leg}"), 2, 9, "duplicate"),
        (
            "[keyed.tenant]\ndefault = \"free\"\n".into(),
            1,
            1,
            "`max_keys` is missing",
        ),
        (TENANTS.replace("= 9", "= 0"), 2, 12, "0 was given, and at least 1"),
        (
            TENANTS.replace("default = \"free\"", ""),
            1,
            1,
            "`default` is missing: the tier of a key",
        ),
        (
            TENANTS.replace("\"free\"", "\"fre\""),
            3,
            11,
            "`fre` is no tier, and there are: free",
        ),
        (
            TENANTS.replace("default", "defualt"),
            3,
            1,
            "`defualt` is unknown here; allowed: max_keys",
        ),
        (TENANTS.replace("limit = 1", "limit = -1"), 7, 9, "-1 was given"),
        (
            TENANTS.replace(
                "limit = 1",
                "limit = 1\nwhen = { load_of = \"b\", metric = \"use\", above = 1 }",
            ),
            8,
            20,
            "`b` is no leg",
        ),
        (
            format!("{TENANTS}acme = 3\n"),
            9,
            8,
            "3 was given, and the name of a tier or a table",
        ),
        (
            format!("{TENANTS}\"acme.com\" = \"gold\"\n"),
            9,
            14,
            "`gold` is no tier, and there are: free",
        ),
        (
            format!("{TENANTS}acme = {{ leg = [] }}\n"),
            9,
            16,
            "at least one is needed",
        ),
        (
            format!(
                "{TENANTS}\"acme.com\" = {{ order = \"lifo\", leg = [{}] }}\n",
                "{ name = \"a\", kind = \"semaphore\", limit = 1 }"
            ),
            9,
            24,
            "it differs from that of tier `free`",
        ),
        (
            format!("{TENANTS}acme = \"free\"\nacme = \"free\"\n"),
            10,
            1,
            "duplicate",
        ),
    ];
    for (text, line, column, words) in rows {
        let error = parse::<PolicySetSpec>(&text, Format::Toml).expect_err(&text);
        let said = error.to_string();
        assert_eq!(
            (error.line(), error.column()),
            (Some(line), Some(column)),
            "{text}\n{said}"
        );
        assert!(said.contains(words), "{text}\n{said}");
    }
    let double = FULL_JSON.replace("initech.com", "acme");
    let error = parse::<PolicySetSpec>(&double, Format::Json).unwrap_err();
    assert_eq!((error.line(), error.column()), (Some(14), Some(13)), "{error}");
}

/// Partitions `gpus` of two levels, shared by a named policy and the keys of two tiers.
const SHARED: &str = r#"
[partitions.gpus]
limit = 10
share = { levels = { live = 1.0, batch = 0.5 } }

[[policy.nightly.leg]]
name = "gpu slots"
kind = "partition"
of = "gpus"
class = "batch"

[keyed.tenant]
max_keys = 100
default = "free"
[[keyed.tenant.tier.free.leg]]
name = "gpu slots"
kind = "partition"
of = "gpus"
class = "batch"
[[keyed.tenant.tier.paid.leg]]
name = "gpu slots"
kind = "partition"
of = "gpus"
class = "live"
[keyed.tenant.keys]
acme = "paid"
"#;

#[test]
fn a_name_of_a_key_may_be_anything() {
    let said = |text: &str| parse::<PolicySetSpec>(text, Format::Toml).unwrap_err().to_string();
    let address = format!("{TENANTS}'[::1]' = 'gold'");
    assert_eq!(
        said(&address),
        "text:9:11: key `[::1]`: `gold` is no tier, and there are: free"
    );
    let column = address
        .replace("\"free\"", "\"a expected at column 0\"")
        .replace(".free.", ".'a expected at column 0'.");
    assert!(said(&column).starts_with("text:9:11: key `[::1]`: `gold` is no tier"));
}

fn parsed(text: &str) -> PolicySetSpec {
    parse::<PolicySetSpec>(text, Format::Toml).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn partitions_read_as_they_are_written() {
    let parts = |a, b| BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]);
    let rows = [
        (
            "guaranteed = { a = 0.3, b = 0.7 }",
            ShareSpec::Guaranteed(parts(0.3, 0.7)),
        ),
        (
            "lent = ['b', 'a']",
            ShareSpec::Lent(["a", "b"].map(String::from).into()),
        ),
        ("levels = { b = 0.25, a = 1 }", ShareSpec::Levels(parts(1.0, 0.25))),
    ];
    for (text, share) in rows {
        let text = format!("[partitions.gpus]\nlimit = 10\nshare = {{ {text} }}");
        let leg = "leg = [{ name = 'x', kind = 'partition', of = 'gpus', class = 'a' }]";
        let mut spec = PolicySetSpec::default();
        spec.partitions
            .insert("gpus".into(), PartitionsSpec { limit: 10, share });
        let leg_of = LegSpec::new(
            "x",
            LegKind::Partition {
                of: "gpus".into(),
                class: "a".into(),
            },
        );
        spec.policies.insert("one".into(), policy([leg_of]));
        assert_eq!(parsed(&format!("{text}\n[policy.one]\n{leg}")), spec);
    }
}

#[test]
fn a_mistake_in_partitions_has_its_line_and_column() {
    let sharing = "share = { levels = { live = 1.0, batch = 0.5 } }";
    let rows = [
        ("limit = 10\n", "", 2, 1, "`limit` is missing"),
        (
            "limit = 10",
            "limit = -1",
            3,
            9,
            "-1 was given, and a whole number of 0",
        ),
        (sharing, "", 2, 1, "`share` is missing: what each class may take"),
        (
            sharing,
            "levels = {}",
            4,
            1,
            "`levels` is unknown here; allowed: limit, share",
        ),
        (
            sharing,
            "share = { level = {} }",
            4,
            19,
            "`level` was given, and one of guaranteed, lent, levels is allowed",
        ),
        (
            sharing,
            "share = { levels = {} }",
            4,
            20,
            "0 classes were given, and 1 to 256 are allowed",
        ),
        (
            sharing,
            "share = { levels = 3 }",
            4,
            20,
            "3 was given, and a table is allowed",
        ),
        (
            sharing,
            "share = { levels = { live = 1.5, batch = 0.5 } }",
            4,
            29,
            "1.5 was given, and 0 to 1 is allowed",
        ),
        (
            sharing,
            "share = { levels = { live = 1.0, batch = 'x' } }",
            4,
            42,
            "`x` was given, and a number is allowed",
        ),
        (
            sharing,
            "share = { levels = { live = nan, batch = 0.5 } }",
            4,
            29,
            "a number is allowed",
        ),
        (
            sharing,
            "share = { guaranteed = { live = 0.7, batch = 0.5 } }",
            4,
            24,
            "parts of 1.2 in all were given, and up to 1",
        ),
        (
            sharing,
            "share = { lent = ['live', 3] }",
            4,
            27,
            "3 was given, and a text is allowed",
        ),
        (
            sharing,
            "share = { levels = { live = 1.0, batch = 0.5 }, lent = ['live', 'batch'] }",
            4,
            9,
            "a table was given, and one of guaranteed, lent, levels is allowed",
        ),
        (
            "of = \"gpus\"\nclass = \"batch\"\n\n",
            "of = \"gpu\"\nclass = \"batch\"\n\n",
            9,
            6,
            "`gpu` is no partitions, and there are: gpus",
        ),
        (
            "class = \"live\"",
            "class = \"livid\"",
            24,
            9,
            "`livid` is no class of `gpus`, and there are: batch, live",
        ),
        ("class = \"live\"", "", 20, 1, "`class` is missing"),
        (
            "class = \"live\"",
            "class = \"live\"\nlimit = 3",
            25,
            1,
            "`limit` is unknown here; allowed: name",
        ),
        (
            "[partitions.gpus]\nlimit = 10\nshare = { levels = { live = 1.0, batch = 0.5 } }",
            "",
            7,
            6,
            "`gpus` is no partitions, and there are: none",
        ),
    ];
    for (from, to, line, column, words) in rows {
        assert!(SHARED.contains(from), "{from}");
        let text = SHARED.replacen(from, to, 1);
        let error = parse::<PolicySetSpec>(&text, Format::Toml).expect_err(&text);
        let said = error.to_string();
        assert_eq!(
            (error.line(), error.column()),
            (Some(line), Some(column)),
            "{to}\n{said}"
        );
        assert!(said.contains(words), "{to}\n{said}");
    }
    let alone = "[[leg]]\nname = 'x'\nkind = 'partition'\nof = 'gpus'\nclass = 'live'\n";
    let error = parse::<PolicySpec>(alone, Format::Toml).unwrap_err();
    assert_eq!((error.line(), error.column()), (Some(4), Some(6)), "{error}");
    assert!(
        error.to_string().contains("is no partitions, and there are: none"),
        "{error}"
    );
}

/// Given policies and keys with legs of one partitions, then they hold permits of one limit, each by its class, under the name of the
/// leg; and a version changes limit and parts while permits are held.
#[test]
fn policies_and_keys_share_the_partitions_of_their_file() {
    let set = parsed(SHARED).build(&ManualClock::new()).unwrap();
    let nightly = set.policy("nightly").unwrap();
    let (acme, free) = (tenant(&set, "acme"), tenant(&set, "free rider"));
    let batch = nightly.try_admit(3).unwrap();
    let more = free.try_admit(2).unwrap();
    let refused = tenant(&set, "another").try_admit(1).unwrap_err();
    assert_eq!((refused.leg(), refused.reason().is_permanent()), ("gpu slots", false));
    let live = acme.try_admit(5).unwrap();
    assert!(acme.try_admit(1).is_err());
    let state = |policy: &ReloadablePolicy| {
        let leg = policy.limiter().leg("gpu slots").unwrap();
        assert_eq!(leg.kind, "partition");
        leg.capacity()
    };
    assert_eq!((state(&acme), state(&free)), (Some(10), Some(5)));
    assert_eq!(set.partitions("gpus").unwrap().in_use(), 10);
    let explained = acme.explain(Ask::one());
    assert_eq!((explained.legs.len(), &*explained.legs[0].leg), (1, "gpu slots"));

    let raised = SHARED
        .replace("limit = 10", "limit = 20")
        .replace("batch = 0.5", "batch = 0.8");
    assert_eq!(apply(&set, &parsed(&raised)), 2);
    assert_eq!((state(&acme), state(&free)), (Some(20), Some(16)));
    drop(tenant(&set, "a new one").try_admit(6).unwrap());

    let lowered = SHARED.replace("limit = 10", "limit = 4");
    apply(&set, &parsed(&lowered));
    drop(live);
    assert!(acme.try_admit(1).is_err(), "five are still held");
    drop(batch);
    assert!(acme.try_admit(2).is_ok());
    drop(more);
    assert!(nightly.try_admit(3).is_err());
    assert!(nightly.try_admit(2).is_ok());
}

#[test]
fn the_classes_of_partitions_stay_and_a_refused_version_changes_nothing() {
    let set = parsed(SHARED).build(&ManualClock::new()).unwrap();
    let rows = [
        ("levels = { live", "guaranteed = { live", "guaranteed"),
        ("batch = 0.5 }", "batch = 0.5, third = 0.1 }", "levels"),
    ];
    for (from, to, key) in rows {
        let text = SHARED
            .replace(from, to)
            .replace("limit = 10", "limit = 50")
            .replace("1.0", "0.5");
        let refused = set.apply(parsed(&text)).unwrap_err();
        assert!(
            refused
                .to_string()
                .starts_with(&format!("partitions.gpus.share.{key}: ")),
            "{refused}"
        );
        assert!(refused.fault().ends_with("levels of batch, live"), "{refused}");
    }
    // A leg that has not changed names them still.
    let mut without = parsed(SHARED);
    without.partitions.clear();
    without.keyed.clear();
    let refused = set.apply(without).unwrap_err();
    assert!(
        refused.fault().ends_with("is no partitions, and there are: none"),
        "{refused}"
    );
    assert_eq!(set.version(), 1);
    let acme = tenant(&set, "acme");
    let held = acme.try_admit(10).unwrap();
    assert!(acme.try_admit(1).is_err());

    // Gone, and back while permits are held.
    let without = "[policy.x]\nleg = [{ name = 'x', kind = 'semaphore', limit = 1 }]";
    apply(&set, &parsed(without));
    assert!(
        set.apply(parsed(&SHARED.replace("batch = 0.5 }", "batch = 0.5, third = 0.1 }")))
            .is_err()
    );
    apply(&set, &parsed(SHARED));
    assert!(tenant(&set, "acme").try_admit(1).is_err(), "ten are held");
    drop(held);
    assert!(tenant(&set, "acme").try_admit(10).is_ok());
}

/// Given waiters of two classes at a full limit, when a version raises it, then each is admitted by its class.
#[test]
fn waiters_at_partitions_are_judged_by_a_version() {
    let clock = ManualClock::new();
    let set = parsed(SHARED).build(&clock).unwrap();
    clock.run(async {
        let nightly = set.policy("nightly").unwrap();
        let acme = tenant(&set, "acme");
        let held = acme.admit(10).await.unwrap();
        let raise = async {
            assert_eq!((nightly.waiting(), acme.waiting()), (1, 1));
            apply(&set, &parsed(&SHARED.replace("limit = 10", "limit = 24")));
        };
        let (batch, live, ()) = futures::join!(nightly.admit(1), acme.admit(1), raise);
        assert!(batch.is_ok() && live.is_ok());
        drop(held);
    });
}

#[test]
fn a_set_hands_out_what_it_names() {
    let set = service().build(&ManualClock::new()).unwrap();
    assert_eq!((set.version(), &*set.spec()), (1, &service()));
    let held = set.policy("global").unwrap().try_admit(24).is_ok();
    assert!(held);
    for (key, requests) in [("acme", 5), ("any", 2)] {
        assert_eq!(available(&tenant(&set, key), "requests"), requests, "{key}");
    }
    assert!(Arc::ptr_eq(&tenant(&set, "acme"), &tenant(&set.clone(), "acme")));
    let unknown = [
        (
            set.policy("tenant").unwrap_err(),
            "`tenant` is no policy, and there are: global",
        ),
        (
            set.keyed("global").unwrap_err(),
            "`global` is no map of keyed policies, and there are: tenant",
        ),
    ];
    for (error, words) in unknown {
        assert_eq!(error.to_string(), words);
    }
}

/// Given tenants of two tiers who have spent something, when versions change a tier, move a tenant, give it a policy of its own, and
/// move all back, then each live key has the legs of its tier, and no leg that stays gives back what was spent.
#[test]
fn live_keys_follow_their_tiers_and_keep_what_they_have_spent() {
    let clock = ManualClock::new();
    let mut spec = service();
    let set = spec.build(&clock).unwrap();
    let (acme, free) = (tenant(&set, "acme"), tenant(&set, "free one"));
    let held = acme.try_admit(4).unwrap();
    drop(free.try_admit(1).unwrap());
    let state = || [&acme, &free].map(|policy| available(policy, "requests"));
    assert_eq!(state(), [1, 1]);

    tenants(&mut spec).tiers.insert(
        "free".into(),
        policy([LegSpec {
            inherit: tollgate::Inherit::Reset,
            ..bucket("requests", "zero burst 8")
        }]),
    );
    assert_eq!(apply(&set, &spec), 2);
    assert_eq!(state(), [1, 8]);

    tenants(&mut spec).keys = [("free one".to_owned(), KeyTier::Named("paid".into()))].into();
    assert_eq!(apply(&set, &spec), 3);
    assert_eq!(state(), [8, 5]);
    assert!(acme.limiter().leg("in flight").is_none());
    assert_eq!(available(&free, "in flight"), 4);

    tenants(&mut spec)
        .keys
        .insert("acme".into(), KeyTier::Own(policy([semaphore("in flight", 4)])));
    assert_eq!(apply(&set, &spec), 4);
    assert_eq!(available(&acme, "in flight"), 4, "it was gone, and is fresh");
    drop(held);
    assert_eq!(available(&acme, "in flight"), 4);

    let back = service();
    apply(&set, &back);
    assert_eq!(available(&acme, "requests"), 5, "it was gone, and is fresh");
    assert_eq!(
        available(&free, "requests"),
        2,
        "as the burst sinks, no more than there was"
    );
    assert_eq!(apply(&set, &back), 6);
    // A key that is first asked for afterwards is of the version in force.
    assert_eq!(available(&tenant(&set, "new"), "requests"), 2);
}

/// Knows a kind that can be built as long as its number is even.
fn kinds() -> Kinds {
    Kinds::new().with(
        "even",
        |numbers: BTreeMap<String, usize>, _: &Clock| match numbers["number"] {
            n if n % 2 == 0 => Ok(Semaphore::new(n).boxed()),
            _ => Err(ConfigError::new("number", "it is odd")),
        },
    )
}

fn even(n: usize) -> PolicySpec {
    let (kind, numbers) = ("even".into(), [("number".into(), n.into())].into_iter().collect());
    policy([LegSpec::new("even", LegKind::Custom { kind, numbers })])
}

/// Given a version with one mistake, in whichever of its policies, then it is refused whole: nothing has changed, and new keys are made
/// by the version before.
#[test]
fn a_version_that_is_refused_changes_nothing() {
    let mut first = service();
    first.policies.insert("even".into(), even(2));
    tenants(&mut first).tiers.insert("even".into(), even(2));
    let clock = ManualClock::new();
    let set = first.build_with(&clock, &kinds()).unwrap();
    let (global, acme) = (set.policy("global").unwrap(), tenant(&set, "acme"));
    drop(acme.try_admit(3).unwrap());
    type Change = fn(&mut PolicySetSpec);
    let rows: [(Change, &str); 10] = [
        (|spec| *spec = PolicySetSpec::default(), "policy: none was given"),
        (
            |spec| spec.policies.get_mut("global").unwrap().legs.clear(),
            "policy.global.leg: none was given",
        ),
        (
            |spec| spec.policies.get_mut("global").unwrap().order = Order::Lifo,
            "policy.global.order: it was changed",
        ),
        (
            |spec| tenants(spec).max_keys = 50,
            "keyed.tenant.max_keys: it was changed",
        ),
        (
            |spec| tenants(spec).default = "gold".into(),
            "keyed.tenant.default: `gold` is no tier",
        ),
        (
            |spec| drop(tenants(spec).keys.insert("x".into(), KeyTier::Named("gold".into()))),
            "keyed.tenant.keys.x: `gold` is no tier",
        ),
        (
            |spec| {
                for policy in tenants(spec).tiers.values_mut() {
                    policy.eviction = Eviction::Oldest;
                }
            },
            "eviction: it was changed",
        ),
        (
            |spec| drop(spec.policies.insert("even".into(), even(3))),
            "policy.even.leg[0].number: it is odd",
        ),
        (
            |spec| drop(spec.policies.insert("new".into(), even(3))),
            "policy.new.leg[0].number: it is odd",
        ),
        (
            |spec| drop(tenants(spec).tiers.insert("even".into(), even(3))),
            "keyed.tenant.tier.even.leg[0].number: it is odd",
        ),
    ];
    for (change, words) in rows {
        let mut next = first.clone();
        next.policies
            .insert("global".into(), policy([semaphore("in flight", 1)]));
        tenants(&mut next)
            .tiers
            .insert("paid".into(), policy([bucket("requests", "zero burst 9")]));
        change(&mut next);
        let error = set.apply(next).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(set.last_error().is_some());
        assert_eq!((set.version(), &*set.spec()), (1, &first), "{words}");
        assert_eq!(
            (available(&global, "in flight"), available(&acme, "requests")),
            (24, 2),
            "{words}"
        );
        assert_eq!(available(&tenant(&set, "new"), "requests"), 2, "{words}");
    }
}

/// Given a kind that can be built when a version is checked, and no more when it is put in force, then its policy keeps the version
/// before, and the set says why.
#[test]
fn a_policy_that_is_not_built_a_second_time_keeps_the_version_before() {
    let left = std::sync::atomic::AtomicUsize::new(2);
    let kinds = Kinds::new().with("even", move |numbers: BTreeMap<String, usize>, _: &Clock| {
        let is_left = left.fetch_sub(1, Ordering::SeqCst) > 0;
        is_left
            .then(|| Semaphore::new(numbers["number"]).boxed())
            .ok_or("it is gone")
    });
    let set_of = |n| PolicySetSpec {
        policies: [("one".into(), even(n))].into(),
        ..PolicySetSpec::default()
    };
    let set = set_of(2).build_with(&ManualClock::new(), &kinds).unwrap();
    assert_eq!(apply(&set, &set_of(4)), 2);
    let error = set.last_error().unwrap().to_string();
    assert_eq!(error, "policy.one.leg[0]: it is gone");
    assert_eq!(available(&set.policy("one").unwrap(), "even"), 2);
}

/// Given a map with room for one key whose numbers a version has changed, then the key gives way to a new one as soon as it is idle.
#[test]
fn an_idle_key_gives_way_also_after_versions() {
    let every = |n: usize| {
        let mut legs = vec![
            bucket("bucket", &format!("{n}/s")),
            LegSpec::new(
                "leaky",
                LegKind::LeakyBucket {
                    quota: format!("{n}/s").parse().unwrap(),
                    slack: 0,
                },
            ),
            LegSpec::new(
                "fixed",
                LegKind::FixedWindow {
                    limit: n as u64,
                    window: Duration::from_secs(1),
                },
            ),
            LegSpec::new(
                "sliding",
                LegKind::SlidingWindow {
                    limit: n as u64,
                    window: Duration::from_secs(1),
                    segments: 64,
                },
            ),
            LegSpec::new(
                "log",
                LegKind::SlidingLog {
                    limit: n as u64,
                    window: Duration::from_secs(1),
                },
            ),
            semaphore("permits", n),
        ];
        let warmup = LegKind::Warmup {
            quota: format!("{n}/s").parse().unwrap(),
            period: Duration::from_secs(1),
            cold_factor: 2,
        };
        legs.push(LegSpec::new("warmup", warmup));
        policy(legs)
    };
    let mut linked = policy([bucket("bucket", "2/s"), semaphore("permits", 2)]);
    linked.legs[0].when = Some(When::above("permits", LoadMetric::Use, 0.5));
    // The first version, and the second. Numbers that are larger than before are not those of a fresh limiter at once.
    let rows = [
        (every(2), every(2)),
        (every(2), every(3)),
        (every(3), every(2)),
        (every(2), linked),
    ];
    for (row, (first, second)) in rows.into_iter().enumerate() {
        let clock = ManualClock::new();
        let mut spec = PolicySetSpec::default();
        spec.keyed.insert("tenant".into(), KeyedSpec::new(1, "all", first));
        let set = spec.build(&clock).unwrap();
        let map = set.keyed("tenant").unwrap();
        drop(map.get("old").unwrap().try_admit(1).unwrap());
        tenants(&mut spec).tiers.insert("all".into(), second);
        apply(&set, &spec);
        assert!(map.get("new").is_err() || row == 3, "row {row}: it has spent something");
        clock.advance(Duration::from_secs(10));
        assert!(map.get("new").is_ok(), "row {row}");
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Given waiters of a named policy and of a key, when a version makes room for both, then both are woken; and a version that a waker
/// hands in is put in force after it.
#[test]
fn the_waiters_of_all_policies_are_judged_by_a_version() {
    struct Reloads(PolicySet, PolicySetSpec);
    impl Wake for Reloads {
        fn wake(self: Arc<Self>) {
            assert!(self.0.apply(self.1.clone()).is_ok());
        }
    }
    let clock = ManualClock::new();
    let limits = |global, tenant| {
        let mut spec = PolicySetSpec::default();
        spec.policies.insert("global".into(), policy([semaphore("x", global)]));
        let one = KeyedSpec::new(9, "one", policy([semaphore("x", tenant)]));
        spec.keyed.insert("tenant".into(), one);
        spec
    };
    let set = limits(0, 0).build(&clock).unwrap();
    let (global, acme) = (set.policy("global").unwrap(), tenant(&set, "acme"));
    let woken = Arc::new(Woken::default());
    let wakers = [
        Waker::from(Arc::new(Reloads(set.clone(), limits(7, 8)))),
        Waker::from(Arc::clone(&woken)),
    ];
    let mut waiting = [Box::pin(global.admit_owned(1)), Box::pin(acme.admit_owned(1))];
    for (future, waker) in waiting.iter_mut().zip(&wakers) {
        assert!(future.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    apply(&set, &limits(1, 1));
    assert!(woken.0.load(Ordering::SeqCst));
    assert_eq!(set.version(), 3);
    assert_eq!((available(&global, "x"), available(&acme, "x")), (6, 7));
}

#[test]
fn a_file_of_a_service_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("service.toml");
    std::fs::write(&path, FULL).unwrap();
    let (spec, mut source) = FileSource::<PolicySetSpec>::open(&path).unwrap();
    assert_eq!(spec, full());
    let mut look = |text: String| {
        std::fs::write(&path, text).unwrap();
        source.look().unwrap().map_err(|error| error.to_string())
    };
    let wrong = look(FULL.replace("\"paid\"", "\"padi\"")).unwrap_err();
    assert!(
        wrong.contains("service.toml:27:8: key `acme`: `padi` is no tier"),
        "{wrong}"
    );
    let next = look(FULL.replace("limit = 24", "limit = 12")).unwrap();

    let clock = ManualClock::new();
    let set = spec.build(&clock).unwrap();
    let (sender, versions) = tokio::sync::watch::channel(spec);
    sender.send_replace(next);
    drop(sender);
    let mut said = Vec::new();
    clock.run(set.follow(versions, |event| {
        said.push(event.unwrap());
    }));
    assert_eq!(said, [2]);
}

const NAMES: [&str; 5] = ["a", "b", "a.b", "", "with \"quotes\""];

/// A policy of one or two buckets without refill: the bursts of the legs `a` and `b`.
fn bursts() -> impl Strategy<Value = PolicySpec> {
    let burst = || prop::option::of(1u64..20);
    (burst(), burst()).prop_filter_map("a leg at least", |(a, b)| {
        let leg = |name, burst: Option<u64>| burst.map(|burst| bucket(name, &format!("zero burst {burst}")));
        let legs: Vec<_> = leg("a", a).into_iter().chain(leg("b", b)).collect();
        (!legs.is_empty()).then(|| policy(legs))
    })
}

fn names<T: std::fmt::Debug>(
    value: impl Strategy<Value = T>,
    most: usize,
) -> impl Strategy<Value = BTreeMap<String, T>> {
    prop::collection::btree_map(prop::sample::select(&NAMES[..]).prop_map(String::from), value, 1..most)
}

fn sets() -> impl Strategy<Value = PolicySetSpec> {
    let tier = prop_oneof![any::<prop::sample::Index>().prop_map(Ok), bursts().prop_map(Err),];
    let keyed =
        (names(bursts(), 4), any::<prop::sample::Index>(), names(tier, 4)).prop_map(|(tiers, default, keys)| {
            let tier = |index: prop::sample::Index| tiers.keys().nth(index.index(tiers.len())).unwrap().clone();
            KeyedSpec {
                max_keys: 50,
                default: tier(default),
                keys: (keys.into_iter())
                    .map(|(key, of)| (key, of.map_or_else(KeyTier::Own, |index| KeyTier::Named(tier(index)))))
                    .collect(),
                tiers,
            }
        });
    (names(bursts(), 4), names(keyed, 3)).prop_map(|(policies, keyed)| PolicySetSpec {
        policies,
        keyed,
        ..PolicySetSpec::default()
    })
}

fn quota(leg: &LegSpec) -> tollgate::Quota {
    match &leg.kind {
        LegKind::TokenBucket { quota } => *quota,
        other => panic!("{other:?}"),
    }
}

/// In TOML, with inline tables, and in JSON: the separators differ.
fn written(spec: &PolicySetSpec, is: &str) -> String {
    let policy = |policy: &PolicySpec| {
        let leg = |leg: &LegSpec| {
            format!(
                "{{ \"name\"{is}{:?}, \"kind\"{is}\"token-bucket\", \"quota\"{is}\"{}\" }}",
                leg.name,
                quota(leg)
            )
        };
        let legs: Vec<_> = policy.legs.iter().map(leg).collect();
        format!("{{ \"leg\"{is}[{}] }}", legs.join(", "))
    };
    fn table<T>(is: &str, rows: &BTreeMap<String, T>, value: impl Fn(&T) -> String) -> String {
        let rows: Vec<_> = rows
            .iter()
            .map(|(key, row)| format!("{key:?}{is}{}", value(row)))
            .collect();
        format!("{{ {} }}", rows.join(", "))
    }
    let keyed = |keyed: &KeyedSpec| {
        let keys = table(is, &keyed.keys, |tier| match tier {
            KeyTier::Named(tier) => format!("{tier:?}"),
            KeyTier::Own(own) => policy(own),
        });
        let (max, default) = (keyed.max_keys, &keyed.default);
        let tiers = table(is, &keyed.tiers, policy);
        format!("{{ \"max_keys\"{is}{max}, \"default\"{is}{default:?}, \"tier\"{is}{tiers}, \"keys\"{is}{keys} }}")
    };
    let (policies, keyed) = (table(is, &spec.policies, policy), table(is, &spec.keyed, keyed));
    match is {
        " = " => format!("policy = {policies}\nkeyed = {keyed}\n"),
        _ => format!("{{ \"policy\": {policies}, \"keyed\": {keyed} }}"),
    }
}

proptest! {
    #[test]
    fn a_set_reads_as_it_is_written(spec in sets()) {
        for (format, is) in [(Format::Toml, " = "), (Format::Json, ": ")] {
            let text = written(&spec, is);
            prop_assert_eq!(parse::<PolicySetSpec>(&text, format), Ok(spec.clone()), "{}", text);
        }
        // And as serde writes it.
        let text = toml::to_string(&spec).unwrap();
        prop_assert_eq!(parse::<PolicySetSpec>(&text, Format::Toml), Ok(spec.clone()), "{}", text);
        let text = serde_json::to_string_pretty(&spec).unwrap();
        prop_assert_eq!(parse::<PolicySetSpec>(&text, Format::Json), Ok(spec.clone()), "{}", text);
    }

    /// Given random versions, and asks between them, then no leg of a key or a named policy admits more than the largest burst that a
    /// version gave it since it was gone the last time, and each live key has the policy of its tier.
    #[test]
    fn versions_give_back_nothing_that_was_spent(
        versions in prop::collection::vec((sets(), prop::collection::vec((0..5usize, 1u64..6), 0..12)), 1..8),
    ) {
        let clock = ManualClock::new();
        let set = versions[0].0.build(&clock).unwrap();
        let mut spent = BTreeMap::<(String, String), u64>::new();
        let mut most = BTreeMap::<(String, String), u64>::new();
        for (spec, asks) in &versions {
            apply(&set, spec);
            let wanted = |place: &str| {
                let (map, name) = place.split_once('/').unwrap();
                match map {
                    "" => spec.policies.get(name),
                    map => spec.keyed.get(map.strip_prefix('=').unwrap())?.policy_of(name),
                }
            };
            let gone = |(place, leg): &(String, String)| wanted(place).is_none_or(|policy| policy.leg(leg).is_none());
            spent.retain(|id, _| !gone(id));
            most.retain(|id, _| !gone(id));
            let mut ask = |place: String, policy: &ReloadablePolicy, wanted: &PolicySpec, n: u64| {
                prop_assert_eq!(&*policy.limiter().spec(), wanted, "{}", place);
                let admitted = policy.try_admit(Ask::many(n)).is_ok();
                for leg in &wanted.legs {
                    let id = (place.clone(), leg.name.clone());
                    let (spent, most) = (spent.entry(id.clone()).or_default(), most.entry(id).or_default());
                    *most = quota(leg).burst_size().max(*most);
                    *spent += if admitted { n } else { 0 };
                    prop_assert!(*spent <= *most, "{}: {} of {}", place, spent, most);
                }
                Ok(())
            };
            for (at, n) in asks {
                let name = NAMES[*at];
                if let Some(wanted) = spec.policies.get(name) {
                    ask(format!("/{name}"), &set.policy(name).unwrap(), wanted, *n)?;
                }
                for (map, keyed) in &spec.keyed {
                    let policy = set.keyed(map).unwrap().get(name).unwrap();
                    ask(format!("={map}/{name}"), &policy, keyed.policy_of(name).unwrap(), *n)?;
                }
            }
            for (map, keyed) in &spec.keyed {
                set.keyed(map).unwrap().for_each(|key, policy| {
                    assert_eq!(Some(&*policy.limiter().spec()), keyed.policy_of(key), "{map} {key}");
                });
            }
        }
    }
}

/// A window that is full at a limit of zero, and a warm-up that is free but warm, are no new ones.
#[test]
fn a_key_that_has_spent_stays_after_versions() {
    let clock = ManualClock::new();
    let window = |limit| LegKind::FixedWindow {
        limit,
        window: Duration::from_secs(3_600),
    };
    let warmup = |rate: &str| LegKind::Warmup {
        quota: rate.parse().unwrap(),
        period: Duration::from_secs(100),
        cold_factor: 3,
    };
    for (before, after) in [(window(10), window(0)), (warmup("10/s"), warmup("20/s"))] {
        let spec = |kind| {
            let mut spec = PolicySetSpec::default();
            let tenants = KeyedSpec::new(1, "free", policy([LegSpec::new("leg", kind)]));
            spec.keyed.insert("tenant".into(), tenants);
            spec
        };
        let set = spec(before).build(&clock).unwrap();
        let tenants = set.keyed("tenant").unwrap();
        for _ in 0..10 {
            tenants
                .get("acme")
                .unwrap()
                .try_admit(1)
                .unwrap()
                .finish(Outcome::Success);
            clock.advance(Duration::from_secs(1));
        }
        set.apply(spec(after)).unwrap();
        assert_eq!(tenants.evict_as_new(), 0);
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(tenants.evict_as_new(), 1);
    }
}
