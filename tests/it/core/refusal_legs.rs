//! What a refusal by several legs says.

use std::sync::Weak;
use std::time::Duration;
use tollgate::sync::{Place, Watch};
use tollgate::{
    Ask, Cost, Demand, Description, FirstOf, Limiter, LimiterExt, ManualClock, Outcome, Quota, Reason, Refusal,
    Semaphore, TokenBucket, Wait,
};

const TOKENS: Cost = Cost::new("tokens");
const BYTES: Cost = Cost::new("bytes");

/// Given a leg that may admit later, and one that never does, then the latter is named, whichever comes first.
#[test]
fn a_leg_that_never_admits_is_not_hidden_by_one_that_may() {
    let busy = || Semaphore::new(1).named("busy");
    let closed = || {
        let closed = Semaphore::new(9);
        closed.close();
        closed.named("closed")
    };
    fn named(legs: impl Limiter, units: u64) -> (Reason, String) {
        let refused = legs.try_admit(units).unwrap_err();
        assert_eq!((refused.wait(), refused.retry_after()), (Wait::Never, None));
        (refused.reason(), refused.leg().to_owned())
    }
    let held = |legs| {
        let busy = busy();
        let _held = busy.try_admit(1).unwrap();
        match legs {
            0 => named((&busy).and(closed()), 1),
            _ => named(closed().and(&busy), 1),
        }
    };
    assert_eq!(
        [held(0), held(1)],
        [(); 2].map(|()| (Reason::Closed, "closed".to_owned()))
    );
    // Of two of a kind it is the first.
    let small = |name: &'static str| Semaphore::new(1).named(name);
    assert_eq!(
        named(small("one").and(small("other")), 9),
        (Reason::Oversized, "one".to_owned())
    );
}

/// Given a composite under a name, one leg of which is ready later than the one that refused, then that name is the leg to wait for,
/// however many costs the ask names.
#[test]
fn a_composite_under_a_name_is_the_leg_to_wait_for() {
    let clock = ManualClock::new();
    let bucket = |quota: Quota| TokenBucket::new(quota.burst(1)).on(&clock);
    let pair = bucket(Quota::per_second(1))
        .and(bucket(Quota::per_minute(1)))
        .named("pair");
    pair.try_admit(1).unwrap().forget();
    let one = Ask::one().cost(TOKENS, 1);
    for ask in [Ask::one(), one, one.cost(BYTES, 1)] {
        let refused = pair.try_admit(ask).unwrap_err();
        assert_eq!(refused.leg(), "pair");
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
    }
}

/// Given a rate of zero whose burst is spent, then no instant will do, also beside legs that name one or wait for an event, and
/// whichever refuses. A source beside it that comes back is waited for.
#[test]
fn no_instant_will_do_tells_itself_apart_from_no_instant_is_known() {
    let clock = ManualClock::new();
    let on = |quota: Quota| {
        let bucket = TokenBucket::new(quota.burst(1)).on(&clock);
        bucket.try_acquire(1).unwrap();
        bucket
    };
    let (spent, hourly) = (|| on(Quota::zero()), || on(Quota::per_hour(1)));
    let busy = || Semaphore::new(0);
    macro_rules! refused {
        ($limiter:expr) => {{
            let limiter = $limiter;
            let refused = limiter.try_admit(1).unwrap_err();
            (refused.is_retryable(), refused.retry_after().is_some())
        }};
    }
    let (never, unknown, known) = ((false, false), (true, false), (true, true));
    assert_eq!(refused!(spent()), never);
    assert_eq!(refused!(busy()), unknown);
    assert_eq!(refused!(hourly()), known);
    assert_eq!(refused!(spent().and(hourly())), never);
    assert_eq!(refused!(hourly().and(spent())), never);
    assert_eq!(refused!(spent().and(busy())), never);
    assert_eq!(refused!(busy().and(spent()).named("both")), never);
    assert_eq!(refused!(busy().and(hourly())), known);
    assert_eq!(refused!(FirstOf::new("one", spent()).or("two", spent())), never);
    assert_eq!(refused!(FirstOf::new("one", spent()).or("two", busy())), unknown);
    assert_eq!(refused!(FirstOf::new("one", busy()).or("two", spent())), unknown);
    assert_eq!(refused!(FirstOf::new("one", spent()).or("two", hourly())), known);
    assert_eq!(
        refused!(FirstOf::new("one", spent()).or("two", busy()).and(Semaphore::new(1))),
        unknown
    );
    assert_eq!(
        refused!(FirstOf::new("one", spent()).or("two", spent()).and(Semaphore::new(1))),
        never
    );
}

/// Asks the legs inside for ten times as much, by an ask of its own.
struct TenTimes<L>(L);

impl<L: Limiter> TenTimes<L> {
    fn ask(demand: &Demand<'_>) -> Ask {
        Ask::many(10 * demand.units())
    }
}

impl<L: Limiter> Limiter for TenTimes<L> {
    type Ticket = L::Ticket;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<L::Ticket, Refusal> {
        self.0.try_reserve(&Demand::new(&Self::ask(demand), demand.reading()))
    }
    fn cancel(&self, ticket: L::Ticket) {
        self.0.cancel(ticket);
    }
    fn finish(&self, ticket: L::Ticket, outcome: Outcome) {
        self.0.finish(ticket, outcome);
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.0.look(&Demand::new(&Self::ask(demand), demand.reading()))
    }
    fn leave(&self, place: &Place) {
        self.0.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.0.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.0.describe(visit);
    }
}

/// Given an adapter that asks the legs inside by an ask of its own, then all legs are looked at for what the caller asked for.
#[test]
fn an_adapter_with_an_ask_of_its_own_changes_nothing_for_the_legs_outside() {
    let clock = ManualClock::new();
    let bucket = |quota: Quota, name: &'static str| TokenBucket::new(quota).on(&clock).named(name);
    let inner = bucket(Quota::per_second(10), "one").and(bucket(Quota::per_second(10), "two"));
    let legs = TenTimes(inner).and(bucket(Quota::per_minute(1), "minute"));
    legs.try_admit(1).unwrap().forget();
    for ask in [Ask::one(), Ask::one().cost(TOKENS, 1)] {
        let refused = legs.try_admit(ask).unwrap_err();
        assert_eq!((refused.reason(), refused.leg()), (Reason::RateExceeded, "one"));
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
    }
}

/// Given a refusal whose reason is set, then the leg and the wait stay, and the first reason is its cause.
#[test]
fn a_reason_that_is_set_keeps_the_leg_and_the_wait() {
    let clock = ManualClock::new();
    let minute = TokenBucket::new(Quota::per_minute(1).burst(1)).on(&clock);
    let legs = Semaphore::new(0).named("full").and(&minute);
    minute.try_acquire(1).unwrap();
    let late = legs.try_admit(1).unwrap_err().with_reason(Reason::TimedOut);
    assert_eq!(
        (late.reason(), late.cause(), late.leg()),
        (Reason::TimedOut, Some(Reason::Saturated), "full")
    );
    assert_eq!(late.retry_after(), Some(Duration::from_secs(60)));
}
