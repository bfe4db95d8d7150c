//! Limiters that are observed or recorded keep the eight laws, and pass on what is inside.

use tollgate::{FirstOf, LimiterExt, ManualClock, Semaphore};
use tollgate_conformance::Suite;
#[cfg(any(feature = "metrics", feature = "tracing"))]
use tollgate_observe::Observed;
use tollgate_observe::record::{AdmissionLog, Recorded};

fn in_flight(clock: &ManualClock) -> Semaphore {
    let _ = clock;
    Semaphore::new(3)
}

#[test]
fn a_recorded_limiter_conforms() {
    let log = AdmissionLog::new(64, &[]);
    Suite::of_permits(3, move |clock| log.record(in_flight(clock)).on(clock))
        .loosen(|recorded: &Recorded<Semaphore>| recorded.limiter().set_limit(4))
        .takes_turns()
        .check();
}

#[cfg(any(feature = "metrics", feature = "tracing"))]
#[test]
fn an_observed_limiter_conforms() {
    use std::time::Duration;
    use tollgate::{Inherit, Quota, TokenBucket};
    Suite::of_permits(3, |clock| Observed::new("suite", in_flight(clock)).on(clock))
        .loosen(|observed| observed.limiter().set_limit(4))
        .takes_turns()
        .check();
    Suite::of_rate(5, Duration::from_millis(500), |clock| {
        Observed::new("suite", TokenBucket::new(Quota::per_second(10).burst(5)).on(clock))
    })
    .loosen(|observed| {
        observed
            .limiter()
            .set_quota(Quota::per_second(10).burst(8), Inherit::Reset);
    })
    .takes_turns()
    .check();
}

/// Whatever stands around the sources, a permit names the one that it was taken from.
#[test]
fn a_permit_names_its_source_through_each_adapter() {
    let sources = || FirstOf::new("empty", Semaphore::new(0)).or("full", Semaphore::new(9));
    let recorded = AdmissionLog::new(9, &[]).record(sources());
    let permit = recorded.try_admit(1).unwrap();
    assert_eq!(
        permit.ticket().map(|(_, ticket)| recorded.limiter().source(ticket)),
        Some("full")
    );
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    {
        let observed = Observed::new("lanes", sources()).on(&ManualClock::new());
        let permit = observed.try_admit(1).unwrap();
        assert_eq!(
            permit.ticket().map(|(_, ticket)| observed.limiter().source(ticket)),
            Some("full")
        );
    }
}
