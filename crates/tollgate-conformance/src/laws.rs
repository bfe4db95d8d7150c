//! The laws that a limiter keeps alone: 1 to 4, and 8.

use super::recorder::Recorder;
use super::suite::{Suite, Tally, Violation, message};
use super::waits::{policy_over, poll};
use super::world::{World, times};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tollgate::{Ask, Instant, Limiter, LimiterExt, ManualClock, Reason, Wait};

type Verdict = Result<(), Violation>;

/// How many timers fire, one after the other; at most 16.
fn timers(clock: &ManualClock) -> usize {
    (0..16).take_while(|_| clock.advance_to_next_timer()).count()
}

/// Law 1, and the described capacity: an exhausted limiter still answers, and sets no timer.
pub(super) fn never_blocks<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    let world = suite.world();
    let (limiter, ask, most) = (Arc::clone(&world.limiter), suite.ask, suite.plenty());
    // Those that were set when it was made, as by a driver, are not those of an attempt.
    let timers_of_its_own = timers(&suite.world().clock);
    let (sender, receiver) = mpsc::channel();
    // A blocked thread is left behind: nothing could end it.
    thread::spawn(move || {
        let held: Vec<_> = (0..most).map_while(|_| limiter.reserve(ask).ok()).collect();
        let count = held.len();
        std::mem::forget(held);
        // The receiver is gone once the patience is over.
        let _ = sender.send(count);
    });
    let count = match receiver.recv_timeout(suite.patience) {
        Ok(count) => count,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            return law.ensure(false, || {
                format!("`try_reserve` has not come back after {:?}", suite.patience)
            });
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            return law.ensure(false, || "`try_reserve` has panicked".into());
        }
    };
    law.ensure(true, String::new)?;
    law.ensure(timers(&world.clock) <= timers_of_its_own, || {
        "`try_reserve` has set a timer: it waits for something".into()
    })?;
    if suite.capacity == 0 || count != suite.capacity {
        return Err(Violation::description(format!(
            "a fresh one admits {count} asks at once, {} were expected",
            suite.capacity
        )));
    }
    if !suite.holds && suite.refill.is_none() {
        return Err(Violation::description("capacity never comes back".into()));
    }
    Ok(())
}

/// Law 4: `commit` neither fails nor changes what was taken, now or later.
pub(super) fn commit_cannot_fail<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    let delays = suite.delays();
    for delay in [Duration::ZERO].iter().chain(&delays) {
        let (world, twin) = (suite.world(), suite.world());
        let reserved: Vec<_> = (0..suite.capacity).map_while(|_| world.reserve(suite.ask)).collect();
        let twins: Vec<_> = (0..suite.capacity).map_while(|_| twin.reserve(suite.ask)).collect();
        world.clock.advance(*delay);
        twin.clock.advance(*delay);
        let mut held = Vec::new();
        for reservation in reserved {
            match catch_unwind(AssertUnwindSafe(|| reservation.commit())) {
                Ok(permit) => held.push(permit),
                Err(panic) => {
                    return law.ensure(false, || {
                        format!("`commit` panicked {delay:?} after phase 1: {}", message(&*panic))
                    });
                }
            }
        }
        let (after, before) = (
            world.fill(suite.ask, suite.plenty()),
            twin.fill(suite.ask, suite.plenty()),
        );
        law.ensure(after.len() == before.len(), || {
            format!(
                "{delay:?} after phase 1, {} more are admitted beside what was committed, {} beside what was only reserved",
                after.len(),
                before.len()
            )
        })?;
        drop((twins, held));
    }
    Ok(())
}

/// Law 2: an ask for more than is left changes nothing, at any fill level.
pub(super) fn a_refusal_leaves_no_trace<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    for taken in 0..=suite.capacity {
        let (world, twin) = (suite.world(), suite.world());
        let held = world.fill(suite.ask, taken);
        let twins = twin.fill(suite.ask, taken);
        for _ in 0..3 {
            let too_much = times(suite.ask, suite.capacity - taken + 1);
            law.ensure(world.reserve(too_much).is_none(), || {
                format!(
                    "with {taken} of {} taken, more than the rest was admitted",
                    suite.capacity
                )
            })?;
        }
        law.ensure(world.ready(suite.ask) == twin.ready(suite.ask), || {
            format!("with {taken} taken, a refusal has moved `ready_at`")
        })?;
        let (after, before) = (suite.future(&world, held), suite.future(&twin, twins));
        law.ensure(after == before, || {
            format!("with {taken} taken, a refusal has left a trace: {after:?} admitted from then on, not {before:?}")
        })?;
    }
    Ok(())
}

/// Law 3 at one instant: reservations that were cancelled, in any order, leave no trace.
pub(super) fn cancel_restores<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    for taken in 0..suite.capacity {
        for order in ["only", "first", "last", "middle"] {
            let (world, twin) = (suite.world(), suite.world());
            let held = world.fill(suite.ask, taken);
            let twins = twin.fill(suite.ask, taken);
            let mut reserved: Vec<_> = std::iter::from_fn(|| world.reserve(suite.ask))
                .take(if order == "only" { 1 } else { suite.plenty() })
                .collect();
            while !reserved.is_empty() {
                let index = match order {
                    "only" | "first" => 0,
                    "last" => reserved.len() - 1,
                    _ => reserved.len() / 2,
                };
                drop(reserved.remove(index));
            }
            let (after, before) = (suite.future(&world, held), suite.future(&twin, twins));
            let exact = suite.exact || order == "only";
            law.ensure(after == before || (!exact && at_most(&after, &before)), || {
                format!(
                    "with {taken} taken, the rest reserved and cancelled ({order} first): {after:?} admitted from then \
                     on, not {before:?}"
                )
            })?;
        }
    }
    Ok(())
}

/// Law 3 as time passes: a cancel never leaves more capacity than if nothing had been taken. A limiter whose permits hold
/// capacity has exactly that.
pub(super) fn a_late_cancel_mints_nothing<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    for delay in suite.delays() {
        for reserved in 1..=suite.capacity {
            let (world, twin) = (suite.world(), suite.world());
            let reservations: Vec<_> = (0..reserved).map_while(|_| world.reserve(suite.ask)).collect();
            world.clock.advance(delay);
            twin.clock.advance(delay);
            let held = world.fill(suite.ask, suite.plenty());
            let twins = twin.fill(suite.ask, held.len());
            if twins.len() < held.len() {
                return law.ensure(false, || "a reservation freed capacity for more".into());
            }
            drop(reservations);
            let (after, before) = (suite.future(&world, held), suite.future(&twin, twins));
            law.ensure(at_most(&after, &before), || {
                format!("cancelled {delay:?} later, {reserved} reserved have become more: {after:?}, not {before:?}")
            })?;
            if suite.refill.is_none() {
                law.ensure(after == before, || {
                    format!("cancelled later, not all of {reserved} came back: {after:?}, not {before:?}")
                })?;
            }
        }
    }
    Ok(())
}

/// True if the sum of admissions is never larger at any step.
fn at_most(after: &[usize], before: &[usize]) -> bool {
    let (mut a, mut b) = (0, 0);
    after.iter().zip(before).all(|(x, y)| {
        a += x;
        b += y;
        a <= b
    })
}

/// Law 8: refused just before `ready_at`, admitted at it; an event if the instant is unknown; waiters ahead count.
pub(super) fn ready_at_is_exact<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    let world = suite.world();
    for taken in 0..suite.capacity {
        let ready = world.ready(suite.ask);
        let now = world.clock.now();
        law.ensure(
            !ready.never && !ready.event && ready.not_before.is_none_or(|at| at <= now),
            || format!("with {taken} of {} taken it is not ready: {ready:?}", suite.capacity),
        )?;
        std::mem::forget(world.fill(suite.ask, 1));
    }
    let exhausted = world.ready(suite.ask);
    if suite.holds {
        let known = exhausted.not_before.is_some_and(|at| at > world.clock.now());
        law.ensure(
            !exhausted.never && (exhausted.event || (known && suite.refill.is_some())),
            || format!("all is held, and `ready_at` does not say that it takes an event: {exhausted:?}"),
        )?;
        return Ok(());
    }
    if suite.in_turn {
        return in_turn(suite, law);
    }
    for asks in 1..=suite.capacity {
        exact(suite, asks, law)?;
        if asks > 1 {
            ahead_counts(suite, asks - 1, law)?;
        }
    }
    Ok(())
}

/// Law 8: an ask that no instant can admit is refused as oversized and is never ready, at any fill level.
pub(super) fn an_oversized_ask_is_refused_for_good<L: Limiter + 'static>(
    suite: &Suite<L>,
    law: &mut Tally<'_>,
) -> Verdict {
    let Some(ask) = suite.never_fits else { return Ok(()) };
    let world = suite.world();
    for taken in 0..=suite.capacity {
        let ready = world.ready(ask);
        law.ensure(ready.never, || {
            format!("with {taken} taken, `ready_at` does not say that {ask:?} never fits: {ready:?}")
        })?;
        let refused = world.limiter.reserve(ask).map(drop).map_err(|refused| {
            let waits = !matches!(refused.wait(), Wait::Never) || refused.retry_after().is_some();
            (refused.reason(), waits)
        });
        law.ensure(refused == Err((Reason::Oversized, false)), || {
            format!("with {taken} taken, what never fits is refused so: {refused:?} (reason, waits)")
        })?;
        std::mem::forget(world.fill(suite.ask, 1));
    }
    Ok(())
}

/// Checks an exhausted rate that other processes share: `ready_at` names an event and no instant. Once all capacity has come
/// back it is ready, and admits.
fn in_turn<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    for asks in 1..=suite.capacity {
        let world = suite.world();
        std::mem::forget(world.fill(suite.ask, suite.capacity));
        let ask = times(suite.ask, asks);
        for _ in 0..3 {
            let ready = world.ready(ask);
            law.ensure(ready.event && !ready.never && world.reserve(ask).is_none(), || {
                format!("{asks} asks wait for a turn, and `ready_at` does not say so: {ready:?}")
            })?;
            world.clock.advance(suite.refill.unwrap_or_default());
            let (now, ready) = (world.clock.now(), world.ready(ask));
            law.ensure(
                !ready.event && !ready.never && ready.not_before.is_none_or(|at| at <= now),
                || format!("all has come back, and {asks} asks are not ready: {ready:?}"),
            )?;
            std::mem::forget(world.fill(suite.ask, suite.plenty()));
        }
    }
    Ok(())
}

/// Checks `ready_at` of `asks` asks five times in a row, from an exhausted rate on.
fn exact<L: Limiter + 'static>(suite: &Suite<L>, asks: usize, law: &mut Tally<'_>) -> Verdict {
    let world = suite.world();
    let _held = world.fill(suite.ask, suite.capacity);
    let ask = times(suite.ask, asks);
    for _ in 0..5 {
        let now = world.clock.now();
        let ready = world.ready(ask);
        let Some(at) = ready.not_before.filter(|&at| at > now) else {
            // The rest of the last refill may be enough.
            law.ensure(world.admit(ask).is_some(), || {
                format!("`ready_at` of {asks} asks says now ({ready:?}), and they are refused")
            })?;
            continue;
        };
        law.ensure(!ready.never && !ready.event, || {
            format!("a rate waits for time alone: {ready:?}")
        })?;
        world
            .clock
            .advance(world.clock.between(now, at) - Duration::from_nanos(1));
        law.ensure(world.reserve(ask).is_none(), || {
            format!("{asks} asks are admitted 1 ns before `ready_at`")
        })?;
        law.ensure(world.ready(ask).not_before == Some(at), || {
            "`ready_at` moves while nothing happens".into()
        })?;
        world.clock.advance(Duration::from_nanos(1));
        law.ensure(world.admit(ask).is_some(), || {
            format!("{asks} asks are refused at `ready_at`")
        })?;
    }
    Ok(())
}

/// Checks a waiter behind `ahead` asks: it is not ready before all of them fit, nor later than in-order admission takes.
fn ahead_counts<L: Limiter + 'static>(suite: &Suite<L>, ahead: usize, law: &mut Tally<'_>) -> Verdict {
    let world = suite.world();
    // Taken one after the other, so that capacity comes back one after the other too.
    for _ in 0..suite.capacity {
        std::mem::forget(world.admit(suite.ask));
        let parts = 4 * suite.capacity as u32;
        world.clock.advance(suite.refill.unwrap_or_default() / parts);
    }
    std::mem::forget(world.fill(suite.ask, suite.plenty()));
    let Some(behind) = behind(suite, &world, ahead)? else {
        return Ok(());
    };
    let together = world.ready(times(suite.ask, ahead + 1)).not_before;
    law.ensure(behind >= together, || {
        format!("behind {ahead} asks it says {behind:?}, before all of them fit ({together:?})")
    })?;
    for _ in 0..=ahead {
        admit_when_ready(&world, suite.ask);
    }
    law.ensure(behind <= Some(world.clock.now()), || {
        format!(
            "behind {ahead} asks it says {behind:?}, and was admitted at {:?}",
            world.clock.now()
        )
    })
}

/// The `not_before` that the limiter answers a policy for a waiter behind `ahead` others, which leave the queue again. `None`
/// if a policy does not wait for this limiter.
#[allow(clippy::option_option)]
fn behind<L: Limiter + 'static>(
    suite: &Suite<L>,
    world: &World<L>,
    ahead: usize,
) -> Result<Option<Option<Instant>>, Violation> {
    let recorder = Arc::new(Recorder::new(Arc::clone(&world.limiter)));
    let policy = policy_over(&world.clock, Arc::clone(&recorder))?;
    let mut waiters: Vec<_> = (0..=ahead).map(|_| Box::pin(policy.admit(suite.ask))).collect();
    for waiter in &mut waiters {
        if poll(waiter.as_mut(), &Arc::default()).is_ready() {
            return Ok(None);
        }
    }
    Ok(recorder.behind())
}

fn admit_when_ready<L: Limiter>(world: &World<L>, ask: Ask) {
    if let Some(at) = world.ready(ask).not_before {
        world.clock.advance_to(at);
    }
    std::mem::forget(world.admit(ask));
}
