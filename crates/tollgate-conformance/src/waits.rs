//! The laws of waiting, checked with a policy in front of the limiter: by law 1 a waiter holds nothing, by law 6 waiters are woken,
//! and by law 9 a waker that panics keeps no other waiter from it.

use super::suite::{Suite, Tally, Violation};
use super::world::{Held, World, times};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tollgate::{Clock, Demand, Description, Limiter, LimiterExt, Outcome, Permit, Policy, Reason, Refusal, Wait};

type Verdict = Result<(), Violation>;

/// Counts its wake-ups.
#[derive(Default)]
pub(super) struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        // Relaxed: counted and read on one thread.
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) fn poll<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
}

pub(super) fn policy_of<L: Limiter + 'static>(world: &World<L>) -> Result<Policy<Arc<L>>, Violation> {
    policy_over(&world.clock, Arc::clone(&world.limiter))
}

pub(super) fn policy_over<L: Limiter + 'static>(clock: &Clock, limiter: L) -> Result<Policy<L>, Violation> {
    Policy::builder()
        .on(clock)
        .limit(limiter)
        .build()
        .map_err(|error| Violation::description(format!("it does not decide by the clock that it was given: {error}")))
}

/// A leg that refuses everything.
struct Shut;

impl Limiter for Shut {
    type Ticket = ();
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.look(demand)
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Err(Refusal::new(Reason::Saturated, "shut", Wait::EVENT))
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("shut"));
    }
}

/// A leg that never refuses, and counts what it has admitted.
#[derive(Default)]
struct Open(AtomicUsize);

impl Open {
    fn held(&self) -> usize {
        // Relaxed, here and below: one thread.
        self.0.load(Ordering::Relaxed)
    }
}

impl Limiter for Open {
    type Ticket = ();
    fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn cancel(&self, (): ()) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
    fn finish(&self, (): (), _: Outcome) {
        self.cancel(());
    }
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        Ok(())
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("open"));
    }
}

/// Law 1: while a policy waits, for this limiter or for another, it holds nothing of any leg.
pub(super) fn nothing_is_held_while_waiting<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    for taken in 0..=suite.capacity {
        let (world, twin) = (suite.world(), suite.world());
        let held = world.fill(suite.ask, taken);
        let twins = twin.fill(suite.ask, taken);
        let policy = policy_over(&world.clock, Arc::clone(&world.limiter).and(Shut))?;
        let mut waiter = pin!(policy.admit(suite.ask));
        for _ in 0..3 {
            let polled = poll(waiter.as_mut(), &Arc::default());
            law.ensure(!matches!(polled, Poll::Ready(Ok(_))), || {
                "a policy admitted although a leg is shut".into()
            })?;
            // A leg that is never waited for refuses instead.
            if polled.is_ready() {
                break;
            }
        }
        if taken < suite.capacity {
            let (after, before) = (suite.future(&world, held), suite.future(&twin, twins));
            law.ensure(after == before, || {
                format!(
                    "with {taken} taken, a waiter at another leg holds something of this one: {after:?} admitted from \
                     then on, not {before:?}"
                )
            })?;
        }
    }
    let world = suite.world();
    let open = Arc::new(Open::default());
    let _held = world.fill(suite.ask, suite.capacity);
    let policy = policy_over(&world.clock, Arc::clone(&open).and(Arc::clone(&world.limiter)))?;
    let mut waiter = pin!(policy.admit(suite.ask));
    for _ in 0..3 {
        let polled = poll(waiter.as_mut(), &Arc::default());
        law.ensure(!matches!(polled, Poll::Ready(Ok(_))) && open.held() == 0, || {
            "a waiter at this limiter holds another".into()
        })?;
        if polled.is_ready() {
            break;
        }
    }
    Ok(())
}

/// One permit, and the rest.
type Taken<'a, L> = (Held<'a, L>, Vec<Held<'a, L>>);

/// Law 6: each event that frees capacity wakes the waiter, which is then admitted.
pub(super) fn waiters_are_woken<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    woken_by(suite, law, "a cancel", |_, (permit, held)| {
        permit.cancel();
        held
    })?;
    if suite.holds && suite.refill.is_none() {
        woken_by(suite, law, "a finish", |_, (permit, held)| {
            drop(permit);
            held
        })?;
    }
    if let Some(refill) = suite.refill {
        woken_by(suite, law, "an instant", |world, (permit, mut held)| {
            std::mem::forget(permit);
            if suite.holds {
                held.clear();
            }
            world.clock.advance(refill);
            held
        })?;
    }
    if let Some((cost, actual)) = suite.settle {
        woken_by(suite, law, "a settle", |_, (permit, mut held)| {
            held.push(permit);
            for permit in &mut held {
                // If no leg counts the cost, the waiter is not admitted, and the check fails.
                let _ = permit.settle(cost, actual);
            }
            held
        })?;
    }
    if let Some(loosen) = &suite.loosen {
        woken_by(suite, law, "a raised limit", |world, (permit, held)| {
            std::mem::forget(permit);
            loosen(&world.limiter);
            held
        })?;
    }
    two_queues_are_both_woken(suite, law)
}

/// Checks that `event` wakes a waiter. All capacity is taken.
fn woken_by<L: Limiter + 'static>(
    suite: &Suite<L>,
    law: &mut Tally<'_>,
    name: &str,
    event: impl for<'a> Fn(&'a World<L>, Taken<'a, L>) -> Vec<Held<'a, L>>,
) -> Verdict {
    for waiters in 1..=2 {
        let world = suite.world();
        let Some(permit) = world.admit(suite.ask) else {
            return Err(Violation::description("a fresh one refuses".into()));
        };
        let held = world.fill(suite.ask, suite.capacity);
        let policy = policy_of(&world)?;
        let count = Arc::new(Count::default());
        let mut waiter = pin!(policy.admit(suite.ask));
        let pending = poll(waiter.as_mut(), &count).is_pending();
        law.ensure(pending, || "a policy admitted although all is taken".into())?;
        // One more waiter behind asks for more than comes back, and must not keep the first from it.
        let mut behind = pin!(policy.admit(times(suite.ask, suite.capacity)));
        if waiters > 1 {
            let _ = poll(behind.as_mut(), &Arc::default());
        }
        let _held = event(&world, (permit, held));
        law.ensure(count.0.load(Ordering::Relaxed) > 0, || {
            format!("{name} freed capacity, and the waiter was not woken")
        })?;
        let admitted = matches!(poll(waiter.as_mut(), &count), Poll::Ready(Ok(_)));
        law.ensure(admitted, || format!("{name} woke the waiter, and it is not admitted"))?;
    }
    Ok(())
}

/// Two policies share the limiter: both are woken when all capacity comes back.
fn two_queues_are_both_woken<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    if suite.capacity < 2 {
        return Ok(());
    }
    let world = suite.world();
    let permits = world.fill(suite.ask, suite.capacity);
    let (one, other) = (policy_of(&world)?, policy_of(&world)?);
    let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
    let (mut first, mut second) = (pin!(one.admit(suite.ask)), pin!(other.admit(suite.ask)));
    let waiting = poll(first.as_mut(), &counts[0]).is_pending() && poll(second.as_mut(), &counts[1]).is_pending();
    law.ensure(waiting, || "a policy admitted although all is taken".into())?;
    permits.into_iter().for_each(Permit::cancel);
    for count in &counts {
        law.ensure(count.0.load(Ordering::Relaxed) > 0, || {
            "all was cancelled, and one of two queues was not woken".into()
        })?;
    }
    let first = poll(first, &counts[0]);
    let second = poll(second, &counts[1]);
    law.ensure(
        matches!((&first, &second), (Poll::Ready(Ok(_)), Poll::Ready(Ok(_)))),
        || "all was cancelled, and one of two queues was not admitted".into(),
    )
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("a waker that panics"));
    }
}

/// Law 9: the waker of one waiter panics, and the others are woken and admitted.
pub(super) fn a_waker_that_panics_ends_alone<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    if suite.capacity < 2 {
        return Ok(());
    }
    let world = suite.world();
    let permits = world.fill(suite.ask, suite.capacity);
    let (one, other) = (policy_of(&world)?, policy_of(&world)?);
    let count = Arc::new(Count::default());
    let (mut first, mut second) = (pin!(one.admit(suite.ask)), pin!(other.admit(suite.ask)));
    let panics = Waker::from(Arc::new(Panics));
    let polled = first.as_mut().poll(&mut Context::from_waker(&panics));
    let waiting = polled.is_pending() && poll(second.as_mut(), &count).is_pending();
    law.ensure(waiting, || "a policy admitted although all is taken".into())?;
    let cancelled = catch_unwind(AssertUnwindSafe(|| permits.into_iter().for_each(Permit::cancel)));
    law.ensure(cancelled.is_ok(), || {
        "the panic of a waker reached the caller of `cancel`".into()
    })?;
    let woken = count.0.load(Ordering::Relaxed) > 0;
    law.ensure(woken && matches!(poll(second, &count), Poll::Ready(Ok(_))), || {
        "the waker of a waiter panicked, and the next waiter is not admitted".into()
    })
}
