//! A conformance line for every limiter of the crate, and broken limiters that the suite must catch by the law.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;
use tollgate::keyed::{FairBudget, FairShare, Shared};
use tollgate::policy::Bypass;
use tollgate::sync::{Place, WaitQueue, Watch};
use tollgate::{
    Ask, BoxLimiter, Clock, Cost, Demand, Description, Inherit, Instant, Keyed, Leg, Legs, Limiter, LimiterExt,
    ManualClock, Outcome, Policy, Quota, Reason, Refusal, Semaphore, Settlement, SlidingWindow, TokenBucket, Wait,
};
use tollgate::{FixedWindow, LeakyBucket, Warmup};
use tollgate_conformance::Suite;

const TOKENS: Cost = Cost::new("tokens");
const MINUTE: Duration = Duration::from_secs(60);

fn in_flight(clock: &ManualClock) -> Semaphore {
    let _ = clock;
    Semaphore::new(3)
}

#[test]
fn semaphore_conforms() {
    Suite::of_permits(3, in_flight)
        .loosen(|semaphore| semaphore.set_limit(4))
        .takes_turns()
        .check();
    Suite::of_permits(2, |_| Semaphore::new(7)).ask(3).takes_turns().check();
    Suite::of_permits(1, |_| Semaphore::new(1)).takes_turns().check();
}

#[cfg(feature = "channel")]
#[test]
fn channel_semaphore_conforms() {
    use tollgate::ChannelSemaphore;
    Suite::of_permits(3, |_| ChannelSemaphore::new(3))
        .loosen(|semaphore| semaphore.set_limit(4))
        .takes_turns()
        .check();
    Suite::of_permits(2, |_| ChannelSemaphore::new(7))
        .ask(3)
        .takes_turns()
        .check();
    Suite::of_permits(1, |_| ChannelSemaphore::new(1)).takes_turns().check();
}

#[test]
fn token_bucket_conforms() {
    let bucket = |clock: &ManualClock| TokenBucket::new(Quota::per_second(10).burst(5)).on(clock);
    Suite::of_rate(5, Duration::from_millis(500), bucket)
        .loosen(|bucket| bucket.set_quota(Quota::per_second(10).burst(8), Inherit::Reset))
        .takes_turns()
        .never_fits(6)
        .check();
    Suite::of_rate(4, Duration::from_secs(4), |clock| {
        TokenBucket::new(Quota::per_second(10).burst(40)).on(clock).per(TOKENS)
    })
    .ask(Ask::one().cost(TOKENS, 10))
    .settle(TOKENS, 5)
    .takes_turns()
    .never_fits(Ask::one().cost(TOKENS, 41))
    .check();
}

/// A load that is always the same.
struct Always(f64);

impl tollgate::policy::conditional::Load for Always {
    fn read(&self, _: Instant) -> f64 {
        self.0
    }
}

#[test]
fn a_linked_limiter_conforms_while_it_applies() {
    use tollgate::policy::conditional::Trigger;
    Suite::of_rate(5, Duration::from_millis(500), |clock| -> Leg<TokenBucket> {
        let bucket = TokenBucket::new(Quota::per_second(10).burst(5)).on(clock);
        bucket.when(Trigger::above(Arc::new(Always(1.0)), 0.5).on(clock))
    })
    .loosen(|linked| {
        linked
            .limiter()
            .set_quota(Quota::per_second(10).burst(8), Inherit::Reset);
    })
    .takes_turns()
    .check();
}

#[test]
fn a_metered_limiter_conforms() {
    use tollgate::policy::conditional::{Meter, Metered};
    Suite::of_permits(3, |clock| -> Metered<Semaphore> {
        Meter::new(clock, Duration::from_secs(1)).watch(Semaphore::new(3))
    })
    .loosen(|metered| metered.limiter().set_limit(4))
    .takes_turns()
    .check();
}

/// In shadow mode nothing is refused: the suite sees a limiter without a bound through one that has it.
#[test]
fn a_shadow_conforms_beside_a_limiter_that_is_obeyed() {
    Suite::of_permits(3, |_| -> (Leg<Semaphore>, Semaphore) {
        Semaphore::new(1).shadow().and(Semaphore::new(3))
    })
    .takes_turns()
    .check();
}

#[test]
fn the_first_of_several_sources_conforms() {
    use tollgate::FirstOf;
    let bucket = |clock: &ManualClock| TokenBucket::new(Quota::per_second(10).burst(5)).on(clock);
    let second = Duration::from_millis(500);
    let closed = || {
        let closed = Semaphore::new(1);
        closed.close();
        closed
    };
    // The work is that of one source, and the other never admits.
    let behind = move |clock: &ManualClock| FirstOf::new("closed", closed()).or("bucket", bucket(clock));
    let before = move |clock: &ManualClock| FirstOf::new("bucket", bucket(clock)).or("closed", closed());
    Suite::of_rate(5, second, behind).takes_turns().check();
    Suite::of_rate(5, second, before).takes_turns().never_fits(6).check();
    Suite::of_rate(4, Duration::from_secs(4), |clock| {
        let bucket = |burst| {
            TokenBucket::new(Quota::per_second(10).burst(burst))
                .on(clock)
                .per(TOKENS)
        };
        FirstOf::new("small", bucket(9)).or("large", bucket(40))
    })
    .ask(Ask::one().cost(TOKENS, 10))
    .settle(TOKENS, 5)
    .takes_turns()
    .never_fits(Ask::one().cost(TOKENS, 41))
    .check();
    // Both give, in their queues.
    Suite::of_permits(3, |_| {
        FirstOf::new("two", Semaphore::new(2)).or("one", Semaphore::new(1))
    })
    .check();
    Suite::of_permits(3, |_| {
        FirstOf::new("two", Counter::new(2, Fault::None)).or("one", Semaphore::new(1))
    })
    .check();
}

#[test]
fn a_token_bucket_by_interval_conforms() {
    Suite::of_rate(5, Duration::from_secs(3), |clock| {
        TokenBucket::new(Quota::per_second(2).burst(5).by_interval()).on(clock)
    })
    .loosen(|bucket| bucket.set_quota(Quota::per_second(2).burst(8).by_interval(), Inherit::Reset))
    .takes_turns()
    .never_fits(6)
    .check();
}

#[test]
fn sliding_window_conforms() {
    // A segment late, at most: a 64th of the window.
    Suite::of_rate(4, MINUTE + MINUTE / 64, |clock| {
        SlidingWindow::new(4, MINUTE).unwrap().on(clock)
    })
    .loosen(|window| window.set_limit(6, Inherit::AsIs))
    .takes_turns()
    .never_fits(5)
    .check();
}

/// A remote limiter that keeps all of its units at hand: only what is at hand can be tried.
#[cfg(feature = "remote")]
mod available_here {
    use super::*;
    use tollgate::remote::{Key, Memory, Prefetch, Remote, RemoteBuilder};

    const DAY: Duration = Duration::from_secs(86_400);

    fn permits(clock: &ManualClock) -> RemoteBuilder {
        let prefetch = Prefetch {
            low: 4,
            idle: DAY,
            ..Prefetch::up_to(4)
        };
        let permits = Remote::permits(Key::new("suite").unwrap(), 3);
        permits.on(clock).ttl(DAY).prefetch(prefetch)
    }

    /// Polls the driver once, and leaves it alone from then on. A driver that is dropped would close the limiter.
    fn rest_after_a_poll(driver: impl Future<Output = ()> + 'static) {
        let driver = Box::leak(Box::new(Box::pin(driver)));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(driver.as_mut().poll(&mut cx).is_pending());
    }

    #[test]
    fn remote_permits_conform() {
        // Law 8 takes the timers of a driver that goes on, which renews, for those of an attempt: so with one that rests, first.
        Suite::of_permits(3, |clock| -> Remote<Memory> {
            let (remote, driver) = permits(clock).build(Memory::new(clock)).unwrap();
            rest_after_a_poll(driver);
            remote
        })
        .check();
        Suite::of_permits(3, |clock| permits(clock).in_place(Memory::new(clock)).unwrap())
            .loosen(|remote| Clock::real().run(remote.set_limit(4)).unwrap())
            // Law 4: the driver fetches what a store has raised, so that waiters have it, and a newcomer does not at once.
            .excused(4)
            .excused(8)
            .check();
    }

    #[test]
    fn a_remote_rate_conforms() {
        let rate = |clock: &ManualClock| {
            let prefetch = Prefetch {
                low: 5,
                expiry: DAY,
                ..Prefetch::up_to(5)
            };
            let rate = Remote::rate(Key::new("suite").unwrap(), Quota::per_second(10).burst(5));
            rate.on(clock).prefetch(prefetch)
        };
        // Law 8 takes the timers of a driver that goes on, which fetches what comes back, for those of an attempt: so with one that rests.
        let alone = Suite::of_rate(5, Duration::from_millis(500), move |clock| {
            let (remote, driver) = rate(clock).build(Memory::new(clock)).unwrap();
            rest_after_a_poll(driver);
            remote
        });
        (1..=9).filter(|law| *law != 8).fold(alone, Suite::excused).check();
        Suite::of_rate(5, Duration::from_millis(500), move |clock| {
            rate(clock).in_place(Memory::new(clock)).unwrap()
        })
        .in_turn()
        .excused(8)
        .check();
    }
}

#[test]
fn leaky_bucket_conforms() {
    let bucket = |clock: &ManualClock| LeakyBucket::new(Quota::per_second(10)).on(clock);
    Suite::of_rate(1, Duration::from_millis(100), bucket)
        .loosen(|bucket| bucket.set_quota(bucket.quota(), 1, Inherit::Reset).unwrap())
        .takes_turns()
        .never_fits(2)
        .check();
    Suite::of_rate(4, Duration::from_secs(4), |clock| {
        let bucket = LeakyBucket::new(Quota::per_second(10)).on(clock);
        bucket.slack(39).unwrap().per(TOKENS)
    })
    .ask(Ask::one().cost(TOKENS, 10))
    .settle(TOKENS, 5)
    .takes_turns()
    .check();
}

#[test]
fn fixed_window_conforms() {
    Suite::of_rate(4, MINUTE, |clock| FixedWindow::new(4, MINUTE).unwrap().on(clock))
        .loosen(|window| window.set_limit(6, Inherit::AsIs))
        .takes_turns()
        .never_fits(5)
        .check();
    Suite::of_rate(3, MINUTE, |clock| {
        FixedWindow::new(30, MINUTE).unwrap().on(clock).per(TOKENS)
    })
    .ask(Ask::one().cost(TOKENS, 10))
    .settle(TOKENS, 5)
    .takes_turns()
    .check();
}

#[cfg(feature = "calendar")]
#[test]
fn calendar_window_conforms() {
    use tollgate::{CalendarPeriod, CalendarWindow};
    let hours = |clock: &ManualClock, limit| {
        CalendarWindow::new(limit, CalendarPeriod::Hour, "UTC")
            .unwrap()
            .on(clock)
    };
    Suite::of_rate(4, 60 * MINUTE, move |clock| hours(clock, 4))
        .loosen(|window| window.set_limit(6, Inherit::AsIs))
        .takes_turns()
        .never_fits(5)
        .check();
    Suite::of_rate(3, 60 * MINUTE, move |clock| hours(clock, 30).per(TOKENS))
        .ask(Ask::one().cost(TOKENS, 10))
        .settle(TOKENS, 5)
        .takes_turns()
        .check();
    // Days of 24, 23, 24, and 24, 25, 24 hours.
    for day in [1_711_666_800, 1_729_893_600] {
        Suite::of_rate(4, 25 * 60 * MINUTE, move |clock| {
            clock.set_wall(std::time::UNIX_EPOCH + Duration::from_secs(day));
            CalendarWindow::new(4, CalendarPeriod::Day, "Europe/Berlin")
                .unwrap()
                .on(clock)
        })
        .takes_turns()
        .check();
    }
}

#[test]
fn sliding_log_conforms() {
    Suite::of_rate(4, MINUTE, |clock| {
        tollgate::SlidingLog::new(4, MINUTE).unwrap().on(clock)
    })
    .loosen(|log| log.set_limit(6, Inherit::AsIs))
    .takes_turns()
    .never_fits(5)
    .check();
    Suite::of_rate(3, MINUTE, |clock| {
        tollgate::SlidingLog::new(30, MINUTE).unwrap().on(clock).per(TOKENS)
    })
    .ask(Ask::one().cost(TOKENS, 10))
    .settle(TOKENS, 5)
    .takes_turns()
    .check();
}

#[test]
fn warmup_conforms() {
    // From cold the first costs 1.375 s, and half a second of idle time makes up for it.
    Suite::of_rate(1, Duration::from_millis(1_875), |clock| {
        let quota = Quota::per_second(2).burst(1);
        Warmup::new(quota, Duration::from_secs(4)).unwrap().on(clock)
    })
    .loosen(Warmup::reset)
    .takes_turns()
    .never_fits(2)
    .check();
    Suite::of_rate(1, Duration::from_secs(60), |clock| {
        let quota = Quota::per_second(2).burst(5);
        Warmup::new(quota, Duration::from_secs(4))
            .unwrap()
            .on(clock)
            .per(TOKENS)
    })
    .ask(Ask::one().cost(TOKENS, 5))
    .takes_turns()
    .check();
}

#[test]
fn classes_of_partitions_conform() {
    use tollgate::policy::{Class, Partitions};
    for shared in [
        || Partitions::guaranteed(5, &[0.2, 0.4]).unwrap(),
        || Partitions::lent(3, 1).unwrap(),
        || Partitions::levels(10, &[0.3, 1.0]).unwrap(),
    ] {
        Suite::of_permits(3, move |_| -> Arc<Class> { Arc::clone(shared().class(0)) })
            .takes_turns()
            .check();
    }
}

#[test]
fn a_reference_conforms() {
    // `&L`, leaked so that it outlives the suite.
    Suite::of_permits(3, |clock| -> &'static Semaphore {
        Box::leak(Box::new(in_flight(clock)))
    })
    .takes_turns()
    .check();
}

#[test]
fn a_shared_handle_conforms() {
    Suite::of_permits(3, |clock| -> Arc<Semaphore> { Arc::new(in_flight(clock)) })
        .takes_turns()
        .check();
}

#[test]
fn a_lane_conforms() {
    Suite::of_permits(3, |clock| -> Policy<Bypass<Semaphore>> {
        let policy = Policy::builder().on(clock).limit(in_flight(clock)).build().unwrap();
        policy.bypass_queue(MINUTE)
    })
    .loosen(|bypass| bypass.limiter().policy().limiter().set_limit(4))
    .check();
    Suite::of_rate(5, Duration::from_millis(500), |clock| -> Policy<Bypass<TokenBucket>> {
        Policy::new(TokenBucket::new(Quota::per_second(10).burst(5)).on(clock)).bypass_queue(MINUTE)
    })
    .inexact_cancel()
    .check();
}

#[test]
fn a_key_and_a_shared_leg_conform() {
    Suite::of_permits(3, |clock| -> Arc<Shared<Semaphore>> {
        let budget = Shared::new(in_flight(clock));
        Keyed::new(1, move |_: &u64| budget.clone()).get(&1).unwrap()
    })
    .loosen(|budget| budget.set_limit(4))
    .takes_turns()
    .check();
}

#[test]
fn a_fair_share_conforms() {
    let share =
        |clock: &ManualClock| -> FairShare { FairBudget::new(Quota::per_second(10).burst(5)).on(clock).share() };
    Suite::of_rate(5, Duration::from_millis(500), share)
        .inexact_cancel()
        .takes_turns()
        .never_fits(6)
        .check();
    Suite::of_rate(4, Duration::from_secs(4), |clock| {
        FairBudget::new(Quota::per_second(10).burst(40))
            .on(clock)
            .share()
            .per(TOKENS)
    })
    .ask(Ask::one().cost(TOKENS, 10))
    .settle(TOKENS, 5)
    .inexact_cancel()
    .takes_turns()
    .check();
}

/// What governor has taken it cannot give back, and when it will have more it says only by refusing.
#[cfg(feature = "governor")]
#[test]
fn governed_conforms_but_for_laws_3_and_5() {
    use governor::{Quota, RateLimiter};
    use std::num::NonZeroU32;
    let number = |n| NonZeroU32::new(n).unwrap();
    Suite::of_rate(5, Duration::from_millis(500), move |clock| -> tollgate::Governed {
        let quota = Quota::per_second(number(10)).allow_burst(number(5));
        tollgate::Governed::new(RateLimiter::direct_with_clock(quota, clock.clock().clone())).on(clock)
    })
    .excused(3)
    .excused(5)
    .check();
}

#[test]
fn a_leg_that_is_not_waited_for_conforms() {
    // The sixth law is for waiters, and it has none.
    Suite::of_permits(3, |clock| -> Leg<Semaphore> { in_flight(clock).at_once() })
        .excused(6)
        .check();
    let bucket = |clock: &ManualClock| TokenBucket::new(Quota::per_second(10).burst(5)).on(clock);
    Suite::of_rate(5, Duration::from_millis(500), move |clock| -> Leg<TokenBucket> {
        bucket(clock).at_once()
    })
    .excused(6)
    .never_fits(6)
    .check();
}

#[test]
fn the_adapters_conform() {
    Suite::of_permits(3, |clock| -> Leg<Semaphore> { Leg::new(in_flight(clock)) })
        .takes_turns()
        .check();
    Suite::of_permits(3, |_| -> Leg<Semaphore> { Semaphore::new(30).per(TOKENS) })
        .ask(Ask::one().cost(TOKENS, 10))
        .takes_turns()
        .check();
    Suite::of_permits(3, |clock| -> Leg<Semaphore> { in_flight(clock).named("in flight") })
        .takes_turns()
        .check();
}

#[test]
fn boxed_limiters_conform() {
    Suite::of_permits(3, |clock| -> BoxLimiter { in_flight(clock).boxed() }).check();
    Suite::of_rate(4, MINUTE, |clock| SlidingLog::new(4, MINUTE, clock).boxed()).check();
}

/// Keeps out cadence#6030.
#[test]
fn both_of_two_conform() {
    Suite::of_permits(2, |_| -> (Semaphore, Semaphore) {
        Semaphore::new(3).and(Semaphore::new(2))
    })
    .takes_turns()
    .check();
    Suite::of_rate(3, MINUTE, |clock| {
        SlidingLog::new(3, MINUTE, clock).and(Semaphore::new(5))
    })
    .holding()
    .check();
    Suite::of_rate(3, MINUTE, |clock| {
        SlidingLog::new(3, MINUTE, clock).and(SlidingLog::new(7, 2 * MINUTE, clock))
    })
    .check();
    Suite::of_rate(3, MINUTE, |clock| {
        FixedWindow::new(3, MINUTE).unwrap().on(clock).and(Semaphore::new(5))
    })
    .holding()
    .takes_turns()
    .check();
    Suite::of_rate(4, 2 * MINUTE, |clock| {
        let window = FixedWindow::new(4, MINUTE).unwrap().on(clock);
        window.and(FixedWindow::new(4, 2 * MINUTE).unwrap().on(clock))
    })
    .takes_turns()
    .never_fits(5)
    .check();
    Suite::of_rate(3, MINUTE, |clock| {
        let log = tollgate::SlidingLog::new(3, MINUTE).unwrap().on(clock);
        log.and(tollgate::SlidingLog::new(7, 2 * MINUTE).unwrap().on(clock))
    })
    .takes_turns()
    .check();
}

#[test]
fn tuples_and_lists_of_many_conform() {
    Suite::of_permits(2, |_| {
        (
            Semaphore::new(3),
            Semaphore::new(2),
            Semaphore::new(4),
            Semaphore::new(2),
        )
    })
    .takes_turns()
    .check();
    Suite::of_rate(3, Duration::from_millis(300), |clock| -> Legs {
        let quota = |burst| TokenBucket::new(Quota::per_second(10).burst(burst)).on(clock).boxed();
        (3..10).map(quota).collect()
    })
    .takes_turns()
    .never_fits(4)
    .check();
}

#[test]
fn policies_conform() {
    Suite::of_permits(3, |clock| -> Policy<Semaphore> {
        Policy::builder().on(clock).limit(in_flight(clock)).build().unwrap()
    })
    .check();
    Suite::of_rate(3, MINUTE, |clock| Policy::new(SlidingLog::new(3, MINUTE, clock))).check();
    Suite::of_rate(3, MINUTE, |clock| {
        Policy::builder()
            .limit(SlidingLog::new(3, MINUTE, clock).named("calls"))
            .limit(Semaphore::new(3).named("in flight"))
            .build()
            .unwrap()
    })
    .holding()
    .check();
    Suite::of_rate(3, MINUTE, |clock| -> Policy<Legs> {
        let calls = SlidingLog::new(3, MINUTE, clock).named("calls").boxed();
        let in_flight = Semaphore::new(3).named("in flight").boxed();
        Policy::new([calls, in_flight].into_iter().collect())
    })
    .holding()
    .check();
}

#[test]
fn a_counter_and_a_log_of_ones_own_conform() {
    Suite::of_permits(3, |_| Counter::new(3, Fault::None))
        .loosen(|counter| counter.give(1))
        .check();
    Suite::of_permits(3, |_| Counter::new(12, Fault::None).per(TOKENS))
        .ask(Ask::one().cost(TOKENS, 4))
        .settle(TOKENS, 1)
        .check();
    Suite::of_rate(4, MINUTE, |clock| SlidingLog::new(4, MINUTE, clock)).check();
}

#[track_caller]
fn caught<L: Limiter + 'static>(law: u8, suite: Suite<L>) {
    let violation = suite.run().expect_err("the suite passes a broken limiter");
    assert_eq!(violation.law(), Some(law), "{violation}");
    assert!(violation.to_string().starts_with(&format!("law {law}: ")));
}

fn counter(fault: Fault) -> Suite<Counter> {
    Suite::of_permits(3, move |_| Counter::new(3, fault))
}

#[test]
fn a_refusal_that_keeps_the_remainder_breaks_law_1() {
    caught(1, counter(Fault::RefusalTakesTheRest));
}

#[test]
fn a_look_that_keeps_a_place_breaks_law_1() {
    caught(1, counter(Fault::LookTakes));
}

#[test]
fn a_finish_that_gives_twice_or_a_forget_that_gives_breaks_law_2() {
    caught(2, counter(Fault::FinishGivesTwice));
    caught(2, counter(Fault::FinishKeeps));
    caught(2, counter(Fault::ForgetGives));
}

#[test]
fn an_earlier_reading_that_adds_breaks_law_2() {
    caught(2, log(Fault::StaleAdds));
}

#[test]
fn a_cancel_or_a_settlement_that_loses_or_mints_breaks_law_3() {
    caught(3, counter(Fault::CancelLoses));
    caught(3, counter(Fault::CancelMints));
    caught(3, log(Fault::CancelMints));
    caught(
        3,
        Suite::of_permits(3, |_| Counter::new(12, Fault::SettleMints).per(TOKENS))
            .ask(Ask::one().cost(TOKENS, 4))
            .settle(TOKENS, 3),
    );
}

#[test]
fn a_raised_limit_that_holds_later_breaks_law_4() {
    caught(4, counter(Fault::None).loosen(|_| ()));
}

#[test]
fn a_wait_that_is_off_by_a_nanosecond_breaks_law_5() {
    for fault in [Fault::Early, Fault::Late, Fault::AheadIgnored] {
        caught(5, log(fault));
    }
}

#[test]
fn a_release_without_a_wake_up_breaks_law_6() {
    caught(6, counter(Fault::Silent));
}

#[test]
fn an_attempt_that_blocks_breaks_law_8() {
    caught(8, counter(Fault::Prefetch).patience(Duration::from_millis(50)));
}

#[test]
fn a_leg_that_keeps_its_units_in_a_panic_breaks_law_9() {
    caught(9, counter(Fault::PanicKeeps));
}

/// Behind it nothing is known of the heads that wait.
struct Mute(TokenBucket);

impl Limiter for Mute {
    type Ticket = tollgate::BucketTicket;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        self.0.try_reserve(&outside(demand, demand.ahead()))
    }
    fn cancel(&self, ticket: Self::Ticket) {
        self.0.cancel(ticket);
    }
    fn finish(&self, _: Self::Ticket, _: Outcome) {}
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.0.look(&outside(demand, demand.ahead()))
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.0.describe(visit);
    }
}

/// The same demand outside any queue.
fn outside<'a>(demand: &Demand<'a>, ahead: u64) -> Demand<'a> {
    Demand::new(demand.ask(), demand.reading()).with_units(demand.units(), ahead)
}

#[test]
fn a_rate_at_which_policies_do_not_take_turns_breaks_law_7() {
    let mute = |clock: &ManualClock| Mute(TokenBucket::new(Quota::per_second(10).burst(1)).on(clock));
    let suite = || Suite::of_rate(1, Duration::from_millis(100), mute).excused(3);
    assert_eq!(suite().check().checks(7), 0);
    caught(7, suite().takes_turns());
}

#[test]
fn a_wrong_description_is_distinguished_from_a_broken_law() {
    let violation = Suite::of_permits(4, in_flight).run().unwrap_err();
    assert_eq!(violation.law(), None);
    assert_eq!(
        violation.to_string(),
        "not as described: a fresh one admits 3 asks at once, 4 were expected"
    );
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Prefetch,
    RefusalTakesTheRest,
    CancelLoses,
    CancelMints,
    SettleMints,
    PanicKeeps,
    FinishGivesTwice,
    FinishKeeps,
    ForgetGives,
    Silent,
    LookTakes,
    StaleAdds,
    Early,
    Late,
    AheadIgnored,
}

/// A number behind a lock, and a queue of waiters.
struct Counter {
    free: Mutex<u64>,
    queue: WaitQueue,
    fault: Fault,
}

impl Counter {
    fn new(free: u64, fault: Fault) -> Self {
        Self {
            free: Mutex::new(free),
            queue: WaitQueue::new("counter"),
            fault,
        }
    }

    fn give(&self, units: u64) {
        *self.free.lock().unwrap() += units;
        if self.fault != Fault::Silent {
            self.queue.notify();
        }
    }

    fn judge(&self, units: u64, ahead: u64) -> Result<(), Refusal> {
        match *self.free.lock().unwrap() < units.saturating_add(ahead) {
            true => Err(Refusal::new(Reason::Saturated, "counter", Wait::EVENT)),
            false => Ok(()),
        }
    }
}

impl Limiter for Counter {
    type Ticket = u64;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<u64, Refusal> {
        self.queue.check(demand, |units, ahead| self.judge(units, ahead))?;
        let units = demand.units();
        let mut free = self.free.lock().unwrap();
        if let Some(left) = free.checked_sub(units) {
            *free = left;
            return Ok(units);
        }
        match self.fault {
            Fault::Prefetch => loop {
                thread::park();
            },
            Fault::RefusalTakesTheRest => *free = 0,
            _ => {}
        }
        Err(Refusal::new(Reason::Saturated, "counter", Wait::EVENT))
    }
    fn cancel(&self, ticket: u64) {
        match self.fault {
            Fault::CancelLoses => self.give(0),
            Fault::CancelMints => self.give(ticket + 1),
            Fault::PanicKeeps if thread::panicking() => {}
            _ => self.give(ticket),
        }
    }
    fn settle(&self, ticket: &mut u64, settlement: &Settlement) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        let minted = u64::from(self.fault == Fault::SettleMints);
        self.give(ticket.saturating_sub(actual) + 4 * minted);
        *ticket = actual.min(*ticket);
        1
    }
    fn finish(&self, ticket: u64, outcome: Outcome) {
        match (self.fault, outcome) {
            (Fault::ForgetGives, Outcome::Forgotten) => self.give(ticket),
            (_, Outcome::Forgotten) | (Fault::FinishKeeps, _) => {}
            (Fault::FinishGivesTwice, _) => self.give(2 * ticket),
            _ => self.give(ticket),
        }
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.queue.look(demand, |units, ahead| self.judge(units, ahead))?;
        if self.fault == Fault::LookTakes {
            *self.free.lock().unwrap() -= demand.units();
        }
        Ok(())
    }
    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("counter"));
    }
}

/// Remembers the instant of every admission of the last window.
struct SlidingLog {
    limit: usize,
    window: Duration,
    clock: Clock,
    log: Mutex<VecDeque<Instant>>,
    queue: WaitQueue,
    fault: Fault,
}

fn log(fault: Fault) -> Suite<SlidingLog> {
    Suite::of_rate(4, MINUTE, move |clock| SlidingLog {
        fault,
        ..SlidingLog::new(4, MINUTE, clock)
    })
}

impl SlidingLog {
    fn new(limit: usize, window: Duration, clock: &Clock) -> Self {
        Self {
            limit,
            window,
            clock: clock.clone(),
            log: Mutex::default(),
            queue: WaitQueue::new("log"),
            fault: Fault::None,
        }
    }

    /// How many entries have left the window by `now`.
    fn gone(&self, log: &VecDeque<Instant>, now: Instant) -> usize {
        log.iter()
            .take_while(|&&at| self.clock.after(at, self.window) <= now)
            .count()
    }

    /// When `units` fit, if that is later than `now`.
    fn due(&self, log: &VecDeque<Instant>, now: Instant, units: usize) -> Option<Instant> {
        let gone = self.gone(log, now);
        let over = (log.len() - gone + units)
            .checked_sub(self.limit)
            .filter(|&over| over > 0)?;
        // Those ahead of us, who are not in the log yet, leave it later than all that are: a lower bound.
        let last = log.get(gone + over - 1).or(log.back())?;
        Some(self.clock.after(*last, self.window))
    }

    fn judge(&self, units: u64, ahead: u64, now: Instant) -> Result<(), Refusal> {
        if units > self.limit as u64 {
            return Err(Refusal::new(Reason::Oversized, "log", Wait::Never));
        }
        let ahead = if self.fault == Fault::AheadIgnored { 0 } else { ahead };
        let Some(due) = self.due(&self.log.lock().unwrap(), now, (units + ahead) as usize) else {
            return Ok(());
        };
        let nanos = ticks(&self.clock, due);
        let off = match self.fault {
            Fault::Early => nanos - 1,
            Fault::Late => nanos + 1,
            _ => nanos,
        };
        let at = self.clock.after(Instant::ZERO, Duration::from_nanos(off));
        Err(Refusal::new(
            Reason::RateExceeded,
            "log",
            Wait::until(&self.clock, now, at),
        ))
    }
}

impl Limiter for SlidingLog {
    type Ticket = (u64, u64);
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(u64, u64), Refusal> {
        let (units, now) = (demand.units(), demand.now(&self.clock));
        self.queue.check(demand, |units, ahead| self.judge(units, ahead, now))?;
        let is_stale = self.log.lock().unwrap().back().is_some_and(|last| now < *last);
        if self.fault != Fault::StaleAdds || !is_stale {
            // Under two locks: no other thread takes here.
            let real = self.due(&self.log.lock().unwrap(), now, units as usize);
            if units > self.limit as u64 || real.is_some() {
                self.judge(units, 0, now)?;
                return Err(Refusal::new(Reason::RateExceeded, "log", Wait::EVENT));
            }
        }
        let mut log = self.log.lock().unwrap();
        let index = log.partition_point(|&at| at <= now);
        for _ in 0..units {
            log.insert(index, now);
        }
        Ok((ticks(&self.clock, now), units))
    }
    fn cancel(&self, (at, units): (u64, u64)) {
        {
            let mut log = self.log.lock().unwrap();
            for _ in 0..units {
                if let Some(index) = log.iter().position(|&entry| ticks(&self.clock, entry) == at) {
                    log.remove(index);
                }
            }
            if self.fault == Fault::CancelMints {
                log.pop_back();
            }
        }
        self.queue.notify();
    }
    fn finish(&self, _: (u64, u64), _: Outcome) {}
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let now = demand.now(&self.clock);
        self.queue.look(demand, |units, ahead| self.judge(units, ahead, now))
    }
    fn leave(&self, place: &Place) {
        self.queue.leave(place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.queue.watch(watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("log").on(&self.clock));
    }
}

/// A manual clock's ticks are nanoseconds since zero.
fn ticks(clock: &Clock, at: Instant) -> u64 {
    clock.between(Instant::ZERO, at).as_nanos() as u64
}
