//! The policies of a service: a file of several, a policy for each key by its tier, and versions of all.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tollgate::policy::file::{Format, FromTable, Kinds, PolicyFileError, Table};
use tollgate::policy::reload::Applied;
use tollgate::policy::source::{FileSource, LastGood, Look, PolicyEvent, Versions};
use tollgate::policy::spec::{
    KeyTier, KeyedSpec, LegRule, LegSpec, LoadMetric, PartitionsSpec, Peak, PeakStep, PolicySetSpec, PolicySpec, Rule,
    Sharing, SpecError, When,
};
use tollgate::policy::{PolicySet, ReloadableLegs};
use tollgate::sync::QueueDemand;
use tollgate::{Ask, Clock, Cost, Eviction, Limiter, LimiterExt, ManualClock, Order, Policy, Semaphore};

fn bucket(name: &str, quota: &str) -> LegSpec {
    LegSpec::new(name, LegRule::token_bucket(quota.parse().unwrap()))
}

fn semaphore(name: &str, limit: usize) -> LegSpec {
    LegSpec::new(name, LegRule::semaphore(limit))
}

fn policy(legs: impl IntoIterator<Item = LegSpec>) -> PolicySpec {
    PolicySpec::new(legs)
}

/// A policy `global`, and tenants: free ones with 2 requests, paid ones with 5.
fn service() -> PolicySetSpec {
    let mut tenants = KeyedSpec::new(100, "free", policy([bucket("requests", "zero burst 2")]));
    let paid = policy([bucket("requests", "zero burst 5"), semaphore("in flight", 4)]);
    tenants.tiers.insert("paid".into(), paid);
    tenants.keys.insert("acme".into(), "paid".into());
    PolicySetSpec {
        policies: [("global".into(), policy([semaphore("in flight", 24)]))].into(),
        keyed: [("tenant".into(), tenants)].into(),
        ..PolicySetSpec::default()
    }
}

fn tenants(spec: &mut PolicySetSpec) -> &mut KeyedSpec {
    spec.keyed.get_mut("tenant").unwrap()
}

fn tenant(set: &PolicySet, key: &str) -> Arc<Policy<ReloadableLegs>> {
    set.keyed("tenant").unwrap().get(key).unwrap()
}

fn available(policy: &Policy<ReloadableLegs>, leg: &str) -> u64 {
    policy.limiter().leg(leg).unwrap().available.unwrap()
}

fn apply(set: &PolicySet, spec: &PolicySetSpec) -> String {
    match set.apply(spec.clone()).unwrap() {
        Applied::Now(changes) => changes.to_string(),
        other => panic!("{other:?}"),
    }
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
        ("acme".to_owned(), "paid".into()),
        ("initech.com".to_owned(), own.into()),
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
    assert_eq!(PolicySetSpec::parse(FULL, Format::Toml), Ok(full()));
    assert_eq!(PolicySetSpec::parse(FULL_JSON, Format::Json), Ok(full()));
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
        ("policy = 3\n".into(), 1, 10, "a number was given, and a table"),
        (
            "[policy]\nglobal = 3\n".into(),
            2,
            10,
            "a number was given, and a table",
        ),
        (
            "[policy.global]\n".into(),
            1,
            1,
            "key `leg`: none was given, and at least one",
        ),
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
        (
            TENANTS.replace("= 9", "= 0"),
            2,
            12,
            "0 was given, and a whole number of 1",
        ),
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
                "limit = 1\nwhen = { leg = \"b\", metric = \"use\", above = 1 }",
            ),
            8,
            16,
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
                "{TENANTS}\"acme.com\" = {{ order = {{ kind = \"lifo\" }}, leg = [{}] }}\n",
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
        let error = PolicySetSpec::parse(&text, Format::Toml).expect_err(&text);
        let said = error.to_string();
        assert_eq!(
            (error.line(), error.column()),
            (Some(line), Some(column)),
            "{text}\n{said}"
        );
        assert!(said.contains(words), "{text}\n{said}");
    }
    let double = FULL_JSON.replace("initech.com", "acme");
    let error = PolicySetSpec::parse(&double, Format::Json).unwrap_err();
    assert_eq!((error.line(), error.column()), (Some(14), Some(13)), "{error}");
}

/// Partitions `gpus` of two levels, shared by a named policy and the keys of two tiers.
const SHARED: &str = r#"
[partitions.gpus]
limit = 10
levels = { live = 1.0, batch = 0.5 }

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

fn parsed(text: &str) -> PolicySetSpec {
    PolicySetSpec::parse(text, Format::Toml).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn partitions_read_as_they_are_written() {
    let parts = |parts: &[(&str, f64)]| parts.iter().map(|&(class, part)| (class.to_owned(), part)).collect();
    let rows = [
        (
            "guaranteed = { a = 0.3, b = 0.7 }",
            Sharing::Guaranteed(parts(&[("a", 0.3), ("b", 0.7)])),
        ),
        (
            "lent = ['b', 'a']",
            Sharing::Lent(["a".to_owned(), "b".to_owned()].into()),
        ),
        (
            "levels = { b = 0.25, a = 1 }",
            Sharing::Levels(parts(&[("a", 1.0), ("b", 0.25)])),
        ),
    ];
    for (text, sharing) in rows {
        let text = format!("[partitions.gpus]\nlimit = 10\n{text}");
        let leg = "leg = [{ name = 'x', kind = 'partition', of = 'gpus', class = 'a' }]";
        let mut spec = PolicySetSpec::default();
        spec.partitions.insert("gpus".into(), PartitionsSpec::new(10, sharing));
        let leg_of = LegSpec::new("x", LegRule::partition("gpus", "a"));
        spec.policies.insert("one".into(), policy([leg_of]));
        assert_eq!(parsed(&format!("{text}\n[policy.one]\n{leg}")), spec);
    }
}

#[test]
fn a_mistake_in_partitions_has_its_line_and_column() {
    let sharing = "levels = { live = 1.0, batch = 0.5 }";
    let rows = [
        ("limit = 10\n", "", 2, 1, "`limit` is missing"),
        (
            "limit = 10",
            "limit = -1",
            3,
            9,
            "-1 was given, and a whole number of 0",
        ),
        (
            sharing,
            "",
            2,
            1,
            "`guaranteed` is missing: the part of each class; or `lent`, or `levels`",
        ),
        (
            sharing,
            "level = {}",
            4,
            1,
            "`level` is unknown here; allowed: limit, guaranteed, lent, levels",
        ),
        (
            sharing,
            "levels = {}",
            4,
            10,
            "0 classes were given, and 1 to 256 are allowed",
        ),
        (
            sharing,
            "levels = 3",
            4,
            10,
            "a number was given, and a table is allowed",
        ),
        (
            sharing,
            "levels = { live = 1.5, batch = 0.5 }",
            4,
            19,
            "1.5 was given, and 0 to 1 is allowed",
        ),
        (
            sharing,
            "levels = { live = 1.0, batch = 'x' }",
            4,
            32,
            "`x` was given, and a number is allowed",
        ),
        (
            sharing,
            "levels = { live = nan, batch = 0.5 }",
            4,
            19,
            "a number is allowed",
        ),
        (
            sharing,
            "guaranteed = { live = 0.7, batch = 0.5 }",
            4,
            14,
            "parts of 1.2 in all were given, and up to 1",
        ),
        (
            sharing,
            "lent = ['live', 3]",
            4,
            17,
            "3 was given, and the name of a class is allowed",
        ),
        (
            sharing,
            "lent = ['live', 'batch', 'live']",
            4,
            26,
            "`live` was given, and each class once is allowed",
        ),
        (
            sharing,
            "levels = { live = 1.0, batch = 0.5 }\nlent = ['live', 'batch']",
            4,
            10,
            "`lent` was given as well, and one of guaranteed, lent, levels",
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
            "[partitions.gpus]\nlimit = 10\nlevels = { live = 1.0, batch = 0.5 }",
            "",
            7,
            6,
            "`gpus` is no partitions, and there are: none",
        ),
    ];
    for (from, to, line, column, words) in rows {
        assert!(SHARED.contains(from), "{from}");
        let text = SHARED.replacen(from, to, 1);
        let error = PolicySetSpec::parse(&text, Format::Toml).expect_err(&text);
        let said = error.to_string();
        assert_eq!(
            (error.line(), error.column()),
            (Some(line), Some(column)),
            "{to}\n{said}"
        );
        assert!(said.contains(words), "{to}\n{said}");
    }
    let alone = "[[leg]]\nname = 'x'\nkind = 'partition'\nof = 'gpus'\nclass = 'live'\n";
    let error = PolicySpec::parse(alone, Format::Toml).unwrap_err();
    assert_eq!((error.line(), error.column()), (Some(4), Some(6)), "{error}");
    assert!(error.to_string().contains("was given to a policy alone"), "{error}");
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
    let refused = tenant(&set, "another").try_admit(1).unwrap_err().to_rejection();
    assert_eq!((&*refused.leg, refused.reason.is_permanent()), ("gpu slots", false));
    let live = acme.try_admit(5).unwrap();
    assert!(acme.try_admit(1).is_err());
    let state = |policy: &Policy<ReloadableLegs>| {
        let leg = policy.limiter().leg("gpu slots").unwrap();
        (leg.kind(), leg.available, leg.capacity)
    };
    assert_eq!(
        (state(&acme), state(&free)),
        (("partition", Some(0), Some(10)), ("partition", Some(0), Some(5)))
    );
    let explained = acme.explain(Ask::one());
    assert_eq!((explained.legs.len(), &*explained.legs[0].leg), (1, "gpu slots"));

    let raised = SHARED
        .replace("limit = 10", "limit = 20")
        .replace("batch = 0.5", "batch = 0.8");
    assert_eq!(
        apply(&set, &parsed(&raised)),
        "version 2: `partitions.gpus` limit 10 -> 20; `partitions.gpus` levels batch 0.5, live 1 -> batch 0.8, live 1"
    );
    assert_eq!((state(&acme).1, state(&free).1), (Some(10), Some(6)));
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
        assert_eq!(
            (refused.tables().collect::<Vec<_>>(), refused.key()),
            (vec!["partitions", "gpus"], key)
        );
        assert!(
            refused.fault().ends_with("stay: levels = batch 0.5, live 1"),
            "{refused}"
        );
    }
    assert_eq!(set.version(), 1);
    let acme = tenant(&set, "acme");
    let held = acme.try_admit(10).unwrap();
    assert!(acme.try_admit(1).is_err());

    // Gone, and back while permits are held.
    let without = "[policy.x]\nleg = [{ name = 'x', kind = 'semaphore', limit = 1 }]";
    let said = apply(&set, &parsed(without));
    assert!(said.contains("`partitions.gpus` removed"), "{said}");
    assert!(
        set.apply(parsed(&SHARED.replace("batch = 0.5 }", "batch = 0.5, third = 0.1 }")))
            .is_err()
    );
    let said = apply(&set, &parsed(SHARED));
    assert!(said.contains("`partitions.gpus` added"), "{said}");
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

/// Given a rule of the program's own, in a named policy and in a tier, then a file of a service may name it, and the last good version
/// under a key of a store too.
#[test]
fn registered_kinds_stand_in_a_file_of_a_service() {
    #[derive(Clone, Debug, PartialEq)]
    struct Exclusive;
    impl Rule for Exclusive {
        type Limiter = Semaphore;
        const KIND: &'static str = "exclusive";
        fn build(&self, _: &Clock) -> Result<Semaphore, SpecError> {
            Ok(Semaphore::new(1))
        }
    }
    impl FromTable for Exclusive {
        const KEYS: &'static [&'static str] = &[];
        fn from_table(_: Table<'_>) -> Result<Self, PolicyFileError> {
            Ok(Self)
        }
    }
    let kinds = Kinds::standard().with::<Exclusive>();
    let text = FULL.replace("kind = \"semaphore\"\nlimit = 24", "kind = \"exclusive\"");
    assert!(PolicySetSpec::parse(&text, Format::Toml).is_err());
    let content = Some(text.clone().into_bytes());
    let (spec, mut last_good) = LastGood::<PolicySetSpec>::first_with("service.toml", content, &kinds).unwrap();
    let set = spec.build(&ManualClock::new()).unwrap();
    let global = set.policy("global").unwrap();
    let held = global.try_admit(1).unwrap();
    assert!(global.try_admit(1).is_err());
    let next = last_good
        .see(Some(text.replace("60/min", "61/min").into()))
        .unwrap()
        .unwrap();
    assert_eq!(
        apply(&set, &next),
        "version 2: `keyed.tenant.tier.free` `requests` rule 60/min -> 61/min"
    );
    drop(held);
}

#[test]
fn a_set_hands_out_what_it_names() {
    let set = service().build(&ManualClock::new()).unwrap();
    assert_eq!((set.version(), set.spec()), (1, service()));
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
        policy([bucket("requests", "zero burst 8").inherit(tollgate::Inherit::Additive)]),
    );
    assert_eq!(
        apply(&set, &spec),
        "version 2: `keyed.tenant.tier.free` `requests` rule zero burst 2 -> zero burst 8; \
         `keyed.tenant.tier.free` `requests` inherit AsIs -> Additive; 1 live key of `tenant` changed"
    );
    assert_eq!(state(), [1, 7]);

    tenants(&mut spec).keys = [("free one".to_owned(), "paid".into())].into();
    assert_eq!(
        apply(&set, &spec),
        "version 3: `keyed.tenant` `acme` tier paid -> free; `keyed.tenant` `free one` tier free -> paid; \
         2 live keys of `tenant` changed"
    );
    assert_eq!(state(), [4, 5]);
    assert!(acme.limiter().leg("in flight").is_none());
    assert_eq!(available(&free, "in flight"), 4);

    tenants(&mut spec)
        .keys
        .insert("acme".into(), policy([semaphore("in flight", 4)]).into());
    assert_eq!(
        apply(&set, &spec),
        "version 4: `keyed.tenant.keys.acme` added; `keyed.tenant` `acme` tier free -> of its own; \
         1 live key of `tenant` changed"
    );
    assert_eq!(available(&acme, "in flight"), 0, "what was held before is held");
    drop(held);
    assert_eq!(available(&acme, "in flight"), 4);

    let back = service();
    apply(&set, &back);
    assert_eq!(state(), [4, 2], "as the burst sinks, no more than there was");
    assert_eq!(apply(&set, &back), "version 6: nothing has changed");
    // A key that is first asked for afterwards is of the version in force.
    assert_eq!(available(&tenant(&set, "new"), "requests"), 2);
}

/// Can be built as long as the number is even.
#[derive(Clone, Debug, PartialEq)]
struct Even(usize);
impl Rule for Even {
    type Limiter = Semaphore;
    const KIND: &'static str = "even";
    fn build(&self, _: &Clock) -> Result<Semaphore, SpecError> {
        match self.0 % 2 {
            0 => Ok(Semaphore::new(self.0)),
            _ => Err(SpecError::new("number", "it is odd")),
        }
    }
    fn check(&self) -> Result<(), SpecError> {
        Ok(())
    }
    fn fixed(&self) -> String {
        self.0.to_string()
    }
}

fn even(n: usize) -> PolicySpec {
    policy([LegSpec::new("even", Even(n))])
}

/// Given versions of a policy and of a set that are refused late, for a leg that cannot be built, then the other legs of these versions
/// leave nothing behind: a later version makes them anew.
#[test]
fn a_leg_that_only_a_refused_version_had_begins_anew() {
    let clock = ManualClock::new();
    let requests = |burst: usize| bucket("requests", &format!("zero burst {burst}"));
    let alone = policy([semaphore("x", 9)]).build(&clock).unwrap();
    let odd = LegSpec::new("even", Even(3));
    assert!(alone.apply(policy([requests(2), odd])).is_err());
    alone.apply(policy([requests(5)])).unwrap();
    assert_eq!(available(&alone, "requests"), 5);

    let mut spec = service();
    let set = spec.build(&clock).unwrap();
    let global = set.policy("global").unwrap();
    spec.policies.insert("global".into(), policy([requests(2)]));
    spec.policies.insert("last".into(), even(3));
    assert!(set.apply(spec.clone()).is_err());
    spec.policies.remove("last");
    for (burst, left) in [(5, 5), (7, 5)] {
        spec.policies.insert("global".into(), policy([requests(burst)]));
        apply(&set, &spec);
        assert_eq!(available(&global, "requests"), left, "a burst of {burst}");
    }
}

/// Given a rule whose text panics, when a version is to bring it, then the version before is in force as a whole.
#[test]
fn a_rule_whose_text_panics_leaves_the_version_before_in_force() {
    #[derive(Clone, Debug, PartialEq)]
    struct Speechless(usize, bool);
    impl Rule for Speechless {
        type Limiter = Semaphore;
        const KIND: &'static str = "speechless";
        fn build(&self, _: &Clock) -> Result<Semaphore, SpecError> {
            Ok(Semaphore::new(self.0))
        }
        fn text(&self) -> String {
            assert!(!self.1, "as it is meant to");
            self.0.to_string()
        }
        fn fixed(&self) -> String {
            String::new()
        }
        fn change(&self, semaphore: &Semaphore, to: &Self, _: tollgate::Inherit) {
            semaphore.set_limit(to.0);
        }
    }
    let version = |limit, panics| policy([LegSpec::new("x", Speechless(limit, panics))]);
    let policy = version(1, false).build(&ManualClock::new()).unwrap();
    let applied = catch_unwind(AssertUnwindSafe(|| policy.apply(version(5, true))));
    assert!(applied.is_err(), "the panic goes on");
    assert_eq!(
        (policy.limiter().version(), policy.limiter().spec()),
        (1, version(1, false))
    );
    assert!(policy.try_admit(2).is_err());
    policy.apply(version(3, false)).unwrap();
    assert_eq!(policy.limiter().version(), 2);
    assert!(policy.try_admit(3).is_ok());
}

type Step = Box<dyn FnOnce() + Send>;

/// Given a load that ends while a version is tried, and a waiter for the numbers below the peak, then the wait ends, although the version
/// is refused.
#[test]
fn a_peak_that_ends_beside_a_refused_version_is_followed() {
    /// Makes a step on another thread when it is built.
    #[derive(Clone)]
    struct Meddler(Arc<std::sync::Mutex<Option<Step>>>);
    impl std::fmt::Debug for Meddler {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Meddler")
        }
    }
    impl PartialEq for Meddler {
        fn eq(&self, other: &Self) -> bool {
            Arc::ptr_eq(&self.0, &other.0)
        }
    }
    impl Rule for Meddler {
        type Limiter = Semaphore;
        const KIND: &'static str = "meddler";
        fn build(&self, _: &Clock) -> Result<Semaphore, SpecError> {
            if let Some(step) = self.0.lock().unwrap().take() {
                std::thread::spawn(step).join().unwrap();
            }
            Ok(Semaphore::new(1))
        }
    }
    let at_peak = PeakStep {
        above: 0.5,
        below: 0.5,
        quota: None,
        limit: Some(0),
    };
    let gate = semaphore("gate", 1).per("gate").peak(Peak {
        leg: "permits".into(),
        metric: LoadMetric::Use,
        over: When::OVER,
        steps: vec![at_peak],
    });
    let legs = [semaphore("permits", 1).per("permits"), gate];
    let mut spec = PolicySetSpec::default();
    spec.policies.insert("first".into(), policy(legs.clone()));
    let set = spec.build(&ManualClock::new()).unwrap();
    let first = set.policy("first").unwrap();
    let ask = |permits, gate| {
        let ask = Ask::one().cost(Cost::new("permits"), permits);
        ask.cost(Cost::new("gate"), gate)
    };
    let held = first.try_admit(ask(1, 0)).unwrap().into_owned();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut waiting = Box::pin(first.admit_owned(ask(0, 1)));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());

    let meddler = Meddler(Arc::new(std::sync::Mutex::new(Some(Box::new(move || drop(held))))));
    let meddled = legs.into_iter().chain([LegSpec::new("meddler", meddler)]);
    spec.policies.insert("first".into(), policy(meddled));
    spec.policies.insert("last".into(), even(3));
    assert!(set.apply(spec).is_err());
    assert!(woken.0.load(Ordering::SeqCst));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

/// Given a version with one mistake, in whichever of its policies, then it is refused whole: nothing has changed, and new keys are made
/// by the version before.
#[test]
fn a_version_that_is_refused_changes_nothing() {
    let mut first = service();
    first.policies.insert("even".into(), even(2));
    tenants(&mut first).tiers.insert("even".into(), even(2));
    let clock = ManualClock::new();
    let set = first.build(&clock).unwrap();
    let (global, acme) = (set.policy("global").unwrap(), tenant(&set, "acme"));
    drop(acme.try_admit(3).unwrap());
    type Change = fn(&mut PolicySetSpec);
    let rows: [(Change, &str); 10] = [
        (|spec| *spec = PolicySetSpec::default(), "key `policy`: none was given"),
        (
            |spec| spec.policies.get_mut("global").unwrap().legs.clear(),
            "policy.global: key `leg`: none was given",
        ),
        (
            |spec| spec.policies.get_mut("global").unwrap().order = Order::Lifo,
            "policy.global: key `order`: it was changed",
        ),
        (
            |spec| tenants(spec).max_keys = 50,
            "keyed.tenant: key `max_keys`: it was changed",
        ),
        (
            |spec| tenants(spec).default = "gold".into(),
            "keyed.tenant: key `default`: `gold` is no tier",
        ),
        (
            |spec| drop(tenants(spec).keys.insert("x".into(), "gold".into())),
            "keyed.tenant.keys: key `x`: `gold` is no tier",
        ),
        (
            |spec| {
                for policy in tenants(spec).tiers.values_mut() {
                    policy.eviction = Eviction::Oldest;
                }
            },
            "key `eviction`: it was changed",
        ),
        (
            |spec| drop(spec.policies.insert("even".into(), even(3))),
            "policy.even: leg `even`, key `number`: it is odd",
        ),
        (
            |spec| drop(spec.policies.insert("new".into(), even(3))),
            "policy.new: leg `even`, key `number`: it is odd",
        ),
        (
            |spec| drop(tenants(spec).tiers.insert("even".into(), even(3))),
            "keyed.tenant.tier.even: leg `even`, key `number`: it is odd",
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
        assert_eq!((set.version(), &set.spec()), (1, &first), "{words}");
        assert_eq!(
            (available(&global, "in flight"), available(&acme, "requests")),
            (24, 2),
            "{words}"
        );
        assert_eq!(available(&tenant(&set, "new"), "requests"), 2, "{words}");
    }
}

/// Given a rule whose comparison panics, at whichever time a version compares it, then that version is in force whole at all other
/// policies and named as it is, or nowhere.
#[test]
fn a_comparison_that_panics_leaves_no_half_of_a_version() {
    thread_local!(static LEFT: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) });
    #[derive(Clone, Debug)]
    struct Touchy;
    impl PartialEq for Touchy {
        fn eq(&self, _: &Self) -> bool {
            let left = LEFT.get();
            LEFT.set(left.wrapping_sub(1));
            assert_ne!(left, 0, "a comparison");
            true
        }
    }
    impl Rule for Touchy {
        type Limiter = Semaphore;
        const KIND: &'static str = "touchy";
        fn build(&self, _: &Clock) -> Result<Semaphore, SpecError> {
            Ok(Semaphore::new(1))
        }
        fn check(&self) -> Result<(), SpecError> {
            Ok(())
        }
        fn fixed(&self) -> String {
            String::new()
        }
    }
    let mut panicked = 0;
    for comparison in 0.. {
        let mut first = service();
        let touchy = policy([LegSpec::new("touchy", Touchy)]);
        first.policies.insert("a touchy".into(), touchy.clone());
        tenants(&mut first).tiers.insert("touchy".into(), touchy);
        tenants(&mut first).keys.insert("a".into(), "touchy".into());
        let set = first.build(&ManualClock::new()).unwrap();
        let (global, acme) = (set.policy("global").unwrap(), tenant(&set, "acme"));
        tenant(&set, "a");
        let mut second = first;
        second
            .policies
            .insert("global".into(), policy([semaphore("in flight", 1)]));
        tenants(&mut second)
            .tiers
            .insert("paid".into(), policy([bucket("requests", "zero burst 9")]));
        LEFT.set(comparison);
        let result = catch_unwind(AssertUnwindSafe(|| set.apply(second)));
        LEFT.set(usize::MAX);
        let versions = (set.version(), global.limiter().version(), acme.limiter().version());
        if result.is_ok() {
            assert_eq!(versions, (2, 2, 2));
            break;
        }
        panicked += 1;
        assert!(
            versions == (1, 1, 1) || versions == (2, 2, 2),
            "comparison {comparison}: {versions:?}"
        );
    }
    assert!(panicked > 1);
}

/// Given handles of a policy and a map whose names a version takes away, then they go on, the names are unknown, and a version that has
/// them again finds what was spent.
#[test]
fn a_name_that_is_gone_keeps_its_state_for_its_holders_and_its_return() {
    let clock = ManualClock::new();
    let mut spec = service();
    let set = spec.build(&clock).unwrap();
    let (global, map) = (set.policy("global").unwrap(), set.keyed("tenant").unwrap());
    let held = global.try_admit(20).unwrap();
    drop(map.get("any").unwrap().try_admit(1).unwrap());
    let other = PolicySetSpec {
        policies: [("other".to_owned(), policy([semaphore("x", 1)]))].into(),
        ..PolicySetSpec::default()
    };
    assert_eq!(
        apply(&set, &other),
        "version 2: `policy.other` added; `keyed.tenant.tier.free` removed; `keyed.tenant.tier.paid` removed; \
         `policy.global` removed"
    );
    assert!(set.policy("global").is_err());
    assert_eq!(
        set.keyed("tenant").unwrap_err().to_string(),
        "`tenant` is no map of keyed policies, and there are: none"
    );
    assert_eq!(available(&global, "in flight"), 4);
    assert_eq!(available(&map.get("acme").unwrap(), "requests"), 5);

    tenants(&mut spec).keys.clear();
    apply(&set, &spec);
    assert_eq!(available(&set.policy("global").unwrap(), "in flight"), 4);
    assert_eq!(available(&tenant(&set, "any"), "requests"), 1);
    assert_eq!(
        available(&tenant(&set, "acme"), "requests"),
        2,
        "made while the map was gone, of another tier"
    );
    drop(held);
}

/// Given a map with room for one key whose numbers a version has changed, then the key gives way to a new one as soon as it is idle. It
/// stays while a leg counts something, also one that is gone, or remembers a load, or was given a version of its own, or ever had a
/// peak table: a fresh leg would have the numbers of another row.
#[test]
fn an_idle_key_gives_way_also_after_versions() {
    let every = |n: usize| {
        let mut legs = vec![
            bucket("bucket", &format!("{n}/s")),
            LegSpec::new("leaky", LegRule::leaky_bucket(format!("{n}/s").parse().unwrap())),
            LegSpec::new("fixed", LegRule::fixed_window(n as u64, Duration::from_secs(1))),
            LegSpec::new("sliding", LegRule::sliding_window(n as u64, Duration::from_secs(1))),
            LegSpec::new("log", LegRule::sliding_log(n as u64, Duration::from_secs(1))),
            semaphore("permits", n),
        ];
        let warmup = tollgate::policy::spec::WarmupRule {
            quota: format!("{n}/s").parse().unwrap(),
            period: Duration::from_secs(1),
            cold_factor: 2,
        };
        legs.push(LegSpec::new("warmup", warmup));
        policy(legs)
    };
    let slow = policy([bucket("slow", "1/h")]);
    let mut linked = policy([bucket("bucket", "2/s"), semaphore("permits", 2)]);
    let load = When::above("permits", LoadMetric::Rate, 0.5);
    linked.legs[0].when = Some(When {
        over: Duration::from_secs(3_600),
        ..load
    });
    let mut at_peak = policy([bucket("bucket", "2/s"), semaphore("permits", 2)]);
    at_peak.legs[0].peak = Some(Peak {
        leg: "permits".into(),
        metric: LoadMetric::Use,
        over: Duration::from_secs(1),
        steps: vec![PeakStep {
            above: 0.5,
            below: 0.5,
            quota: Some("1/s".parse().unwrap()),
            limit: None,
        }],
    });
    let asks: fn(&Policy<ReloadableLegs>) = |policy| drop(policy.try_admit(1).unwrap());
    let own: fn(&Policy<ReloadableLegs>) = |policy| drop(policy.apply(policy.limiter().spec()).unwrap());
    let none: fn(&Policy<ReloadableLegs>) = |_| ();
    let hour = Duration::from_secs(3_600);
    // The first version, the second, what is done after it, and how long the key stays.
    let rows = [
        (every(2), every(2), none, Duration::from_secs(10)),
        (every(2), every(3), none, Duration::from_secs(10)),
        (every(3), every(2), none, Duration::from_secs(10)),
        (every(2), linked, asks, hour),
        (slow.clone(), every(2), none, hour),
        (every(2), slow, none, Duration::from_secs(10)),
        (every(2), every(3), own, Duration::MAX),
        (every(2), at_peak.clone(), none, Duration::from_secs(10)),
        (at_peak.clone(), every(2), none, Duration::from_secs(10)),
        (at_peak.clone(), at_peak, asks, Duration::from_secs(10)),
    ];
    for (row, (first, second, then, idle)) in rows.into_iter().enumerate() {
        let clock = ManualClock::new();
        let mut spec = PolicySetSpec::default();
        spec.keyed.insert("tenant".into(), KeyedSpec::new(1, "all", first));
        let set = spec.build(&clock).unwrap();
        let map = set.keyed("tenant").unwrap();
        drop(map.get("old").unwrap().try_admit(1).unwrap());
        tenants(&mut spec).tiers.insert("all".into(), second);
        apply(&set, &spec);
        let old = map.get("old").unwrap();
        then(&old);
        drop(old);
        if row > 0 {
            assert!(map.get("new").is_err(), "row {row}: it has spent something");
        }
        clock.advance(idle.min(hour) / 2);
        assert_eq!(
            map.get("new").is_err(),
            idle >= hour,
            "row {row}: {:?}",
            map.peek("old").map(|old| old.limiter().status())
        );
        if idle == hour {
            clock.advance(hour);
            assert!(map.get("new").is_ok(), "row {row}");
        }
    }
}

/// Given a key with a version of its own, when a later version of the set is the same, then that is in force for it, and the key gives
/// way again.
#[test]
fn a_key_gives_way_again_when_its_own_version_is_that_of_its_tier() {
    let clock = ManualClock::new();
    let mut spec = PolicySetSpec::default();
    let tier = |limit| policy([semaphore("x", limit)]);
    spec.keyed.insert("tenant".into(), KeyedSpec::new(1, "all", tier(1)));
    let set = spec.build(&clock).unwrap();
    let map = set.keyed("tenant").unwrap();
    map.get("old").unwrap().apply(tier(2)).unwrap();
    assert!(map.get("new").is_err(), "its own version would be lost");
    tenants(&mut spec).tiers.insert("all".into(), tier(2));
    apply(&set, &spec);
    assert!(map.get("new").is_ok());
}

/// Given a policy and a map that are gone, when their names come back with another queue, then they are fresh, and who has the old ones
/// goes on with those.
#[test]
fn a_name_that_comes_back_with_another_queue_begins_anew() {
    let clock = ManualClock::new();
    let full = service();
    let set = full.build(&clock).unwrap();
    let (global, acme) = (set.policy("global").unwrap(), tenant(&set, "acme"));
    let held = (global.try_admit(20).unwrap(), acme.try_admit(3).unwrap());
    let mut other = PolicySetSpec::default();
    other.policies.insert("other".into(), even(2));
    apply(&set, &other);

    let mut back = full.clone();
    back.policies.get_mut("global").unwrap().order = Order::Lifo;
    tenants(&mut back).max_keys = 7;
    apply(&set, &back);
    assert_eq!((available(&global, "in flight"), available(&acme, "in flight")), (4, 1));
    let (global, acme) = (set.policy("global").unwrap(), tenant(&set, "acme"));
    assert_eq!(
        (available(&global, "in flight"), available(&acme, "in flight")),
        (24, 4)
    );
    assert_eq!(set.keyed("tenant").unwrap().max_entries(), 7);
    back.policies.get_mut("global").unwrap().order = Order::Fifo;
    assert!(set.apply(back).is_err(), "it has not gone again");
    drop(held);
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
    struct Reload(PolicySet, PolicySetSpec);
    impl Wake for Reload {
        fn wake(self: Arc<Self>) {
            assert!(matches!(self.0.apply(self.1.clone()), Ok(Applied::Now(_))));
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
        Waker::from(Arc::new(Reload(set.clone(), limits(7, 8)))),
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

    // One in a queue of a leg by a way of its own is woken in the midst of the change: a version that it hands in comes after.
    struct HandIn(PolicySet, PolicySetSpec, Arc<std::sync::Mutex<Vec<&'static str>>>);
    impl Wake for HandIn {
        fn wake(self: Arc<Self>) {
            // Noted, since it panics in any case.
            let note = |right: bool, what| self.2.lock().unwrap().extend((!right).then_some(what));
            note(self.0.apply(self.1.clone()) == Ok(Applied::Next), "it is handed over");
            let mut wrong = self.1.clone();
            tenants(&mut wrong).max_keys = 3;
            note(self.0.apply(wrong).is_err(), "it is checked all the same");
            let mut wrong = self.1.clone();
            wrong.policies.insert("global".into(), even(3));
            note(self.0.apply(wrong).is_err(), "it is built all the same");
            let global = self.0.policy("global").unwrap();
            note(global.apply(even(3)).is_err(), "so is that of one policy");
            panic!("as it is meant to");
        }
    }
    drop(waiting);
    apply(&set, &limits(0, 0));
    let mut queues = Vec::new();
    global.limiter().queues(&mut |queue| queues.push(queue));
    let wrong = Arc::default();
    let claim = queues[0].join(
        QueueDemand::of(1),
        &Waker::from(Arc::new(HandIn(set.clone(), limits(5, 5), Arc::clone(&wrong)))),
    );
    let changed = catch_unwind(AssertUnwindSafe(|| set.apply(limits(2, 2))));
    assert!(changed.is_err(), "the panic goes on");
    assert!(wrong.lock().unwrap().is_empty(), "{wrong:?}");
    assert_eq!((set.version(), set.spec()), (6, limits(5, 5)));
    assert_eq!(available(&acme, "x"), 5);
    queues[0].leave(claim);
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
        assert!(matches!(source.look(), Look::Unsettled));
        match source.look() {
            Look::Version(version) => version.map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let wrong = look(FULL.replace("\"paid\"", "\"padi\"")).unwrap_err();
    assert!(
        wrong.contains("service.toml:27:8: key `acme`: `padi` is no tier"),
        "{wrong}"
    );
    let next = look(FULL.replace("limit = 24", "limit = 12")).unwrap();

    let clock = ManualClock::new();
    let set = spec.build(&clock).unwrap();
    let (sender, versions) = Versions::new();
    sender.push(next);
    drop(sender);
    let mut said = Vec::new();
    clock.run(set.follow(versions, |event| {
        assert!(matches!(event, PolicyEvent::Applied(_)));
        said.push(event.to_string());
    }));
    assert_eq!(said, ["version 2: `policy.global` `in flight` rule 24 -> 12"]);
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

/// In TOML, with inline tables, and in JSON: the separators differ.
fn written(spec: &PolicySetSpec, is: &str) -> String {
    let policy = |policy: &PolicySpec| {
        let leg = |leg: &LegSpec| {
            format!(
                "{{ \"name\"{is}{:?}, \"kind\"{is}\"token-bucket\", \"quota\"{is}\"{}\" }}",
                leg.name, leg.rule
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
            prop_assert_eq!(PolicySetSpec::parse(&text, format), Ok(spec.clone()), "{}", text);
        }
    }

    /// Given random versions, and asks between them, then no leg of a key or a named policy admits more than the largest burst that a
    /// version gave it, and each live key has the policy of its tier.
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
            let mut ask = |place: String, policy: &Policy<ReloadableLegs>, wanted: &PolicySpec, n: u64| {
                prop_assert_eq!(&policy.limiter().spec(), wanted, "{}", place);
                let admitted = policy.try_admit(Ask::many(n)).is_ok();
                for leg in &wanted.legs {
                    let id = (place.clone(), leg.name.clone());
                    let (spent, most) = (spent.entry(id.clone()).or_default(), most.entry(id).or_default());
                    *most = leg.rule.most().unwrap().max(*most);
                    *spent += if admitted { n } else { 0 };
                    prop_assert!(*spent <= *most, "{}: {} of {}", place, spent, most);
                }
                Ok(())
            };
            for (at, n) in asks {
                let name = NAMES[*at];
                if let Some(wanted) = spec.policies.get(name) {
                    ask(format!("policy {name}"), &set.policy(name).unwrap(), wanted, *n)?;
                }
                for (map, keyed) in &spec.keyed {
                    let policy = set.keyed(map).unwrap().get(name).unwrap();
                    ask(format!("{map} {name}"), &policy, keyed.policy_of(name).unwrap(), *n)?;
                }
            }
            for (map, keyed) in &spec.keyed {
                set.keyed(map).unwrap().for_each(|key, policy| {
                    assert_eq!(Some(&policy.limiter().spec()), keyed.policy_of(key), "{map} {key}");
                });
            }
        }
    }
}
