//! Numbers that depend on load: who waits under them, and what crossing a mark gives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::policy::LiveLegs;
use tollgate::policy::linked::{Mark, Meter};
use tollgate::policy::live::Verdict;
use tollgate::policy::spec::{LegSpec, LoadMetric, Peak, PolicySpec, Rule, Step, When};
use tollgate::status::Status;
use tollgate::{Ask, Cost, Inherit, LimiterExt, ManualClock, Outcome, Policy, Quota, Reason, Semaphore, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

fn bucket(name: &str, text: &str) -> LegSpec {
    LegSpec::new(name, Rule::token_bucket(quota(text)))
}

fn semaphore(name: &str, limit: usize) -> LegSpec {
    LegSpec::new(name, Rule::semaphore(limit))
}

fn step(above: f64, below: f64) -> Step {
    Step {
        above,
        below,
        quota: None,
        limit: None,
    }
}

fn by_use(leg: &str, steps: impl Into<Vec<Step>>) -> Peak {
    Peak {
        leg: leg.into(),
        metric: LoadMetric::Use,
        over: SECOND,
        steps: steps.into(),
    }
}

fn available(policy: &Policy<LiveLegs>, leg: &str) -> u64 {
    policy.limiter().leg(leg).unwrap().available.unwrap()
}

fn poll<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Given a bucket that gains nothing and whose burst depends on load, by any rule of inheritance, when the load crosses the
/// mark to and fro and all that there is is taken each time, then it gives its burst once.
#[test]
fn crossing_a_mark_to_and_fro_gives_nothing() {
    const WORK: Cost = Cost::new("work");
    for inherit in [Inherit::AsIs, Inherit::Proportional, Inherit::Additive, Inherit::Reset] {
        let clock = ManualClock::new();
        let at_peak = Step {
            quota: Some(quota("zero burst 10")),
            ..step(0.5, 0.5)
        };
        let policy = PolicySpec::new([
            semaphore("permits", 2).per("load"),
            bucket("budget", "zero burst 100")
                .per("work")
                .inherit(inherit)
                .peak(by_use("permits", [at_peak])),
        ])
        .build(&clock)
        .unwrap();
        let load = Cost::new("load");
        let mut given = 0;
        for _ in 0..10 {
            let take = |units| {
                let ask = Ask::one().cost(WORK, units).cost(load, 0);
                policy.try_admit(ask).is_ok()
            };
            while take(1) {
                given += 1;
            }
            let held = policy.try_admit(Ask::one().cost(WORK, 0).cost(load, 2)).unwrap();
            assert!(take(0));
            while take(1) {
                given += 1;
            }
            drop(held);
            assert!(take(0));
        }
        assert_eq!(given, 100, "{inherit:?}");
    }
}

/// The same of a window: what it has admitted counts, under whichever limit.
#[test]
fn a_window_counts_admissions_under_the_other_limit() {
    let clock = ManualClock::new();
    let at_peak = Step {
        limit: Some(5),
        ..step(0.5, 0.5)
    };
    let policy = PolicySpec::new([
        semaphore("permits", 10),
        LegSpec::new("window", Rule::sliding_window(20, 60 * SECOND)).peak(by_use("permits", [at_peak])),
    ])
    .build(&clock)
    .unwrap();
    let mut held: Vec<_> = (0..6).map(|_| policy.try_admit(1).unwrap()).collect();
    assert_eq!(policy.try_admit(1).unwrap_err().leg(), "window");
    assert_eq!(available(&policy, "window"), 0);
    held.clear();
    assert_eq!(available(&policy, "window"), 14);
}

/// Given a waiter under the numbers of a peak, when a version raises the limit that the load is measured by, so that the load
/// is low, then that version admits the waiter: its turn is free before any waker is called.
#[test]
fn a_version_that_ends_a_peak_admits_its_waiters() {
    let clock = ManualClock::new();
    let at_peak = Step {
        limit: Some(7),
        ..step(0.5, 0.5)
    };
    let spec = |permits| {
        let window = Rule::fixed_window(20, 3_600 * SECOND);
        let window = LegSpec::new("window", window).inherit(Inherit::Additive);
        PolicySpec::new([window.peak(by_use("permits", [at_peak])), semaphore("permits", permits)])
    };
    let policy = spec(10).build(&clock).unwrap();
    let held: Vec<_> = (0..7).map(|_| policy.try_admit(1).unwrap()).collect();
    let woken = Arc::new(Woken::default());
    let mut waits = Box::pin(policy.admit(1));
    let waker = Waker::from(Arc::clone(&woken));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    policy.apply(spec(100)).unwrap();
    // Any poll would find it by itself.
    assert!(woken.0.load(Ordering::SeqCst), "seven of a hundred are no peak");
    assert!(poll(&mut waits).is_ready());
    drop(held);
}

/// Given a link and a peak table whose load has been above their upper marks and is now between them, when a version
/// changes other things, or moves the marks, or changes the numbers, then what was known of the load is known still.
#[test]
fn a_known_load_outlasts_a_version() {
    let clock = ManualClock::new();
    let at_peak = |above| Step {
        limit: Some(50),
        ..step(above, 0.2)
    };
    let spec = |mark: f64, limit, other| {
        let table = by_use("permits", [at_peak(mark)]);
        PolicySpec::new([
            bucket("throttle", "zero burst 3").when(When::above("permits", LoadMetric::Use, mark).below(0.2)),
            LegSpec::new("window", Rule::fixed_window(limit, 3_600 * SECOND)).peak(table),
            semaphore("other", other),
            semaphore("permits", 10),
        ])
    };
    let policy = spec(0.8, 100, 100).build(&clock).unwrap();
    let stands = || {
        let (throttle, window) = (policy.limiter().leg("throttle"), policy.limiter().leg("window"));
        (throttle.unwrap().applies, window.unwrap().capacity.unwrap())
    };
    let mut held: Vec<_> = (0..9).map(|_| policy.try_admit(1).unwrap()).collect();
    assert_eq!(stands(), (true, 50));
    held.truncate(5);
    assert_eq!(stands(), (true, 50), "between the marks");
    let known = (true, 50);
    for (mark, limit, other, expected) in [
        (0.8, 100, 200, known),
        (0.7, 100, 200, known),
        (0.7, 99, 200, known),
        // All that is known of the load by now is that it was above 0.7.
        (0.8, 100, 100, (false, 100)),
    ] {
        policy.apply(spec(mark, limit, other)).unwrap();
        assert_eq!(stands(), expected, "{mark} {limit} {other}");
    }
    held.truncate(1);
    assert_eq!(stands(), (false, 100));
}

/// Given a metric that is measured over time, when versions come and go, then what was measured is not forgotten.
#[test]
fn measurements_outlast_a_version() {
    let clock = ManualClock::new();
    let spec = |other| {
        PolicySpec::new([
            bucket("throttle", "zero").when(When::above("calls", LoadMetric::Rate, 5.0)),
            bucket("calls", "1000/s burst 1000"),
            semaphore("other", other),
        ])
    };
    let policy = spec(100).build(&clock).unwrap();
    for _ in 0..6 {
        policy.try_admit(1).unwrap().finish(Outcome::Success);
    }
    policy.apply(spec(101)).unwrap();
    assert_eq!(policy.try_admit(1).unwrap_err().leg(), "throttle");
}

/// Given a request that is given back in another tenth than it was reserved in, then it is taken from where it was counted,
/// and no other request is taken for it.
#[test]
fn a_refund_goes_where_the_charge_was_counted() {
    let clock = ManualClock::new();
    let policy = PolicySpec::new([
        bucket("throttle", "zero").when(When::above("calls", LoadMetric::Rate, 2.0)),
        bucket("calls", "1000/s burst 1000"),
    ])
    .build(&clock)
    .unwrap();
    let reserved = policy.reserve(1).unwrap();
    clock.advance(SECOND / 2);
    policy.try_admit(2).unwrap().finish(Outcome::Success);
    drop(reserved);
    clock.advance(SECOND / 2);
    // The half second of the reservation is forgotten; the two of the other half are not.
    let decision = policy.explain(1);
    assert_eq!(decision.legs[0].when.as_ref().unwrap().load, 2.0);
}

#[test]
fn an_explanation_follows_the_load_and_names_it() {
    let clock = ManualClock::new();
    let at_peak = Step {
        limit: Some(3),
        ..step(0.5, 0.4)
    };
    let policy = PolicySpec::new([
        bucket("throttle", "zero").when(When::above("permits", LoadMetric::Use, 0.7).below(0.3)),
        LegSpec::new("window", Rule::fixed_window(20, SECOND)).peak(by_use("permits", [at_peak])),
        semaphore("permits", 10),
    ])
    .build(&clock)
    .unwrap();
    let quiet = policy.explain(1);
    assert_eq!(quiet.legs[0].verdict, Verdict::Idle);
    assert_eq!(
        quiet.legs[0].to_string(),
        "`throttle` does not apply, asked for 1 of 0, while the use of `permits`, 0, is not above 0.7"
    );
    let _held: Vec<_> = (0..6).map(|_| policy.try_admit(1).unwrap()).collect();
    // No caller has asked since: the explanation finds the new numbers itself.
    let decision = policy.explain(1);
    let refused = decision.refused_by().unwrap();
    let peak = refused.peak.as_ref().unwrap();
    assert_eq!((&*refused.leg, refused.capacity), ("window", Some(3)));
    assert_eq!(
        (&*peak.leg, peak.load, peak.above, peak.below, peak.exceeded),
        ("permits", 0.6, 0.5, 0.4, true)
    );
    assert_eq!(
        refused.to_string(),
        "`window` admits after 1s, asked for 1 of 0, with the numbers for the use of `permits`, 0.6, was above 0.5"
    );
}

#[test]
fn a_survey_shows_the_legs_that_apply() {
    let clock = ManualClock::new();
    let policy = PolicySpec::new([
        bucket("throttle", "zero").when(When::above("permits", LoadMetric::Use, 0.5)),
        bucket("trial", "1/s").shadow(),
        semaphore("permits", 10),
    ])
    .build(&clock)
    .unwrap();
    let visit_status = || {
        let mut seen = Vec::new();
        tollgate::Limiter::visit_status(policy.limiter(), &mut |status: Status<'_>| {
            seen.push(status.leg.to_owned());
        });
        seen
    };
    assert_eq!(visit_status(), ["permits"]);
    let _held: Vec<_> = (0..6).map(|_| policy.try_admit(1).unwrap()).collect();
    assert_eq!(visit_status(), ["throttle", "permits"]);
}

/// Tables that look at each other's use, of which each changes what the other sees.
#[test]
fn tables_that_go_in_a_circle_are_refused() {
    let at_peak = Step {
        limit: Some(3),
        ..step(0.5, 0.4)
    };
    let circle = |last: &str, metric| {
        let mut peak = by_use(last, [at_peak]);
        peak.metric = metric;
        PolicySpec::new([
            semaphore("a", 10).peak(by_use("b", [at_peak])),
            semaphore("b", 10).peak(by_use("c", [at_peak])),
            semaphore("c", 10).peak(peak),
            semaphore("d", 10),
        ])
    };
    let error = circle("a", LoadMetric::Use).check().unwrap_err();
    assert_eq!((error.position(), error.key()), (Some(0), "peak.leg"));
    assert!(error.fault().ends_with("in a circle: a -> b -> c -> a"), "{error}");
    assert_eq!(circle("d", LoadMetric::Use).check(), Ok(()));
    assert_eq!(circle("a", LoadMetric::Rate).check(), Ok(()));
}

#[test]
fn a_semaphore_of_too_many_permits_is_refused() {
    let error = PolicySpec::new([semaphore("permits", usize::MAX)]).check().unwrap_err();
    assert_eq!((error.position(), error.key()), (Some(0), "limit"));
    let mut spec = PolicySpec::new([semaphore("a", 10), semaphore("b", 10)]);
    let at_peak = Step {
        limit: Some(u64::MAX),
        ..step(0.5, 0.4)
    };
    spec.legs[0].peak = Some(by_use("b", [at_peak]));
    let error = spec.check().unwrap_err();
    assert_eq!((error.position(), error.key()), (Some(0), "peak.steps[0].limit"));
}

/// Given a policy that was built of limiters, when it is asked why, then each leg says so under its name, with its numbers:
/// also one that does not apply, one that is on trial, and one of the user's making.
#[test]
fn a_policy_that_was_built_explains_itself() {
    let clock = ManualClock::new();
    const TOKENS: Cost = Cost::new("tokens");
    let meter = Meter::new(&clock, SECOND);
    let busy = Mark::above(meter.load(LoadMetric::Rate, 1.0), 0.5).on(&clock);
    let policy = Policy::builder()
        .limit(
            TokenBucket::new(quota("zero"))
                .on(&clock)
                .linked(busy)
                .named("throttle"),
        )
        .limit(
            TokenBucket::new(quota("10/s burst 50"))
                .on(&clock)
                .per(TOKENS)
                .named("tokens"),
        )
        .limit(Semaphore::new(1).shadow())
        .limit(meter.watch(Semaphore::new(4)))
        .build()
        .unwrap();
    let told = |ask: Ask| {
        let legs = policy.explain(ask).legs.into_iter();
        legs.map(|leg| (leg.leg.to_string(), leg.available, leg.verdict.refuses()))
            .collect::<Vec<_>>()
    };
    let row = |leg: &str, available, refuses| (leg.to_owned(), available, refuses);
    let ask = Ask::one().cost(TOKENS, 30);
    let quiet = [
        row("throttle", None, false),
        row("tokens", Some(50), false),
        row("leg 3", None, false),
        row("semaphore", Some(4), false),
    ];
    assert_eq!(told(ask), quiet);
    let held = policy.try_admit(ask).unwrap();
    let decision = policy.explain(ask);
    assert_eq!(&*decision.refused_by().unwrap().leg, "throttle");
    assert_eq!(decision.legs[1].missing(), Some(10));
    assert_eq!(decision.legs[1].verdict, Verdict::After(SECOND));
    let busy = [
        row("throttle", Some(0), true),
        row("tokens", Some(20), true),
        row("leg 3", None, false),
        row("semaphore", Some(3), false),
    ];
    assert_eq!(told(ask), busy);
    assert_eq!(policy.explain(1).legs[1].verdict, Verdict::Never, "a cost is not named");
    drop(held);
}

/// Given a table whose largest limit is 5 and whose limit in force is 2, then an ask for 4 waits, and holds up none that fit, and one
/// for 6 does not wait. The former is admitted when the load allows it.
#[test]
fn a_demand_that_no_row_of_a_table_admits_is_refused_for_good() {
    let clock = ManualClock::new();
    for (low, high) in [(2, 5), (5, 2)] {
        let at_peak = Step {
            limit: Some(high),
            ..step(0.5, 0.5)
        };
        let policy = PolicySpec::new([
            semaphore("load", 4).per("load"),
            semaphore("slots", low).peak(by_use("load", [at_peak])),
        ])
        .build(&clock)
        .unwrap();
        let ask = |calls, load| Ask::many(calls).cost(Cost::new("load"), load);
        // The limit of 2 is in force, and is used up.
        let loaded = (low as u64 > high).then(|| policy.try_admit(ask(0, 4)).unwrap());
        let held = policy.try_admit(ask(2, 0)).unwrap();
        let mut waits = [4, 1, 6].map(|calls| Box::pin(policy.admit(ask(calls, 0))));
        assert!(poll(&mut waits[0]).is_pending());
        assert!(poll(&mut waits[1]).is_pending());
        let Poll::Ready(Err(refused)) = poll(&mut waits[2]) else {
            panic!("it waits for more than any load allows");
        };
        assert_eq!((refused.reason(), refused.leg()), (Reason::Oversized, "slots"));
        drop(held);
        assert!(poll(&mut waits[1]).is_ready());
        assert!(poll(&mut waits[0]).is_pending());
        // The limit is 5 without a load where it is 2 with one, and the other way round.
        let load = loaded.is_none().then(|| policy.try_admit(ask(0, 4)).unwrap());
        drop(loaded);
        // A load that rises is found by the next ask.
        assert!(policy.try_admit(ask(0, 0)).is_ok());
        assert!(poll(&mut waits[0]).is_ready());
        drop(load);
    }
}
