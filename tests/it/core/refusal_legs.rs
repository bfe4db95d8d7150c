//! What a refusal by several legs says, and when they are asked for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tollgate::sync::WaitQueue;
use tollgate::time::ClockReading;
use tollgate::{
    Ask, Cost, Demand, FirstOf, Limiter, LimiterExt, ManualClock, Outcome, Quota, ReadyAt, Reason, Refusal, Rejection,
    Semaphore, TokenBucket, Wait,
};

const TOKENS: Cost = Cost::new("tokens");
const BYTES: Cost = Cost::new("bytes");

/// Given a leg that is never ready for a reason that may pass, and one for a permanent reason, then the latter is named, whichever
/// comes first, with how much that leg was asked for.
#[test]
fn a_permanent_reason_is_not_hidden_by_one_that_may_pass() {
    let away = ReadyAt::never_for(Reason::Unavailable, "store", 1);
    let small = ReadyAt::never_for(Reason::Oversized, "small", 9);
    for ready in [away.and(small), small.and(away)] {
        let refused = ready.never_admits(1).unwrap();
        assert_eq!(
            (refused.reason(), refused.leg(), refused.units()),
            (Reason::Oversized, "small", 9)
        );
        assert_eq!(ready.leg(), "small");
    }
    // A larger limit may help the small one, and nothing the closed one.
    let closed = ReadyAt::never_for(Reason::Closed, "closed", 1);
    for ready in [closed.and(small), small.and(closed)] {
        assert_eq!(ready.never_admits(1).unwrap().leg(), "closed");
    }
    // Of two of a kind it is the first.
    let other = ReadyAt::never_for(Reason::Oversized, "other", 9);
    assert_eq!(other.and(small).never_admits(1).unwrap().leg(), "other");
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
        assert_eq!((refused.leg(), refused.retry_leg()), ("pair", "pair"));
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
        assert_eq!(refused.to_rejection().retry_leg, None);
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
    let said = |limiter: &dyn Fn() -> Rejection| {
        let said = limiter();
        (said.retryable, said.retry_after.is_some())
    };
    macro_rules! refused {
        ($limiter:expr) => {
            said(&|| {
                let limiter = $limiter;
                let refused = limiter.try_admit(1).unwrap_err();
                let rejection = refused.to_rejection();
                assert_eq!(refused.is_retryable(), rejection.retryable);
                assert_eq!(refused.retry_after(), rejection.retry_after);
                rejection
            })
        };
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
    fn ask(demand: Demand<'_>) -> Ask {
        Ask::many(10 * demand.units())
    }
}

impl<L: Limiter> Limiter for TenTimes<L> {
    type Ticket = L::Ticket;
    fn try_reserve(&self, demand: Demand<'_>) -> Result<L::Ticket, Refusal<'_>> {
        self.0.try_reserve(Demand::new(&Self::ask(demand), demand.reading()))
    }
    fn cancel(&self, ticket: L::Ticket, now: &ClockReading) {
        self.0.cancel(ticket, now);
    }
    fn finish(&self, ticket: L::Ticket, outcome: Outcome, now: &ClockReading) {
        self.0.finish(ticket, outcome, now);
    }
    fn forget(&self, ticket: L::Ticket) {
        self.0.forget(ticket);
    }
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.0.ready_at(Demand::new(&Self::ask(demand), demand.reading()))
    }
    fn clock(&self) -> Option<&tollgate::Clock> {
        self.0.clock()
    }
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        self.0.queues(visit);
    }
}

/// Given an adapter that asks the legs inside by an ask of its own, then all legs are looked at for what the caller asked for.
#[test]
fn an_adapter_with_an_ask_of_its_own_changes_nothing_for_the_legs_outside() {
    let clock = ManualClock::new();
    let bucket = |quota: Quota, name| TokenBucket::new(quota).on(&clock).named(name);
    let inner = bucket(Quota::per_second(10), "one").and(bucket(Quota::per_second(10), "two"));
    let legs = TenTimes(inner).and(bucket(Quota::per_minute(1), "minute"));
    legs.try_admit(1).unwrap().forget();
    for ask in [Ask::one(), Ask::one().cost(TOKENS, 1)] {
        let refused = legs.try_admit(ask).unwrap_err();
        assert_eq!(
            (refused.reason(), refused.leg(), refused.units()),
            (Reason::RateExceeded, "one", 10)
        );
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
        assert_eq!(refused.retry_leg(), "minute");
    }
}

/// Full until something happens; or closed for good. Counts how often it is looked at.
#[derive(Default)]
struct Full {
    looks: AtomicUsize,
    closed: AtomicBool,
}

impl Limiter for Full {
    type Ticket = ();
    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        Err(Refusal::new(Reason::Saturated, "full", demand.units(), Wait::Event))
    }
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
    fn forget(&self, (): ()) {}
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        match self.closed.load(Ordering::Relaxed) {
            true => ReadyAt::never_for(Reason::Closed, "full", demand.units()),
            false => ReadyAt::on_event("full"),
        }
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn WaitQueue)) {}
}

/// The debug form of a refusal is made where something has gone wrong already: it runs no users' code.
#[test]
fn the_debug_form_of_a_refusal_asks_no_leg() {
    let clock = ManualClock::new();
    let full = Full::default();
    let legs = (&full).and(TokenBucket::new(Quota::per_second(1)).on(&clock));
    let refused = legs.try_admit(1).unwrap_err();
    let text = format!("{refused:?}");
    assert!(text.contains("Saturated") && text.contains("\"full\""), "{text}");
    assert_eq!(full.looks.load(Ordering::Relaxed), 0);
    // Each of these looks once.
    assert_eq!(refused.to_rejection().reason, Reason::Saturated);
    assert_eq!(full.looks.load(Ordering::Relaxed), 1);
    assert_eq!(refused.reason(), Reason::Saturated);
    assert_eq!(full.looks.load(Ordering::Relaxed), 2);
}

/// Given a refusal whose reason is set, then it stays, and so does how long to wait, whatever becomes of the legs.
#[test]
fn a_reason_that_is_set_stays() {
    let clock = ManualClock::new();
    let (full, minute) = (
        Full::default(),
        TokenBucket::new(Quota::per_minute(1).burst(1)).on(&clock),
    );
    let legs = (&full).and(&minute);
    minute.try_acquire(1).unwrap();
    let late = legs.try_admit(1).unwrap_err().with_reason(Reason::TimedOut);
    let looks = full.looks.load(Ordering::Relaxed);
    full.closed.store(true, Ordering::Relaxed);
    assert_eq!((late.reason(), late.leg()), (Reason::TimedOut, "full"));
    assert_eq!(
        (late.retry_after(), late.retry_leg()),
        (Some(Duration::from_secs(60)), "token_bucket")
    );
    assert_eq!(full.looks.load(Ordering::Relaxed), looks);
}
