//! The laws that a limiter keeps alone: 1 to 5, and 8.

use super::recorder::Recorder;
use super::suite::{Suite, Tally, Violation};
use super::waits::{policy_over, poll};
use super::world::{World, times};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tollgate::{Ask, ClockReading, Demand, Instant, Limiter, LimiterExt, ManualClock, Permit, Reason, Wait};

type Verdict = Result<(), Violation>;

/// A time limit that each wait meets: a policy judges such a waiter behind those ahead of it.
const FAR: Duration = Duration::from_secs(1 << 30);

/// How many timers fire, one after the other; at most 16.
fn timers(clock: &ManualClock) -> usize {
    (0..16).take_while(|_| clock.advance_to_next_timer()).count()
}

/// Law 8, and the described capacity: an exhausted limiter still answers, and sets no timer.
pub(super) fn never_blocks<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    let world = suite.world();
    let (limiter, ask, most) = (Arc::clone(&world.limiter), suite.ask, suite.plenty());
    // Those that were set when it was made, as by a driver, are not those of an attempt.
    let timers_of_its_own = timers(&suite.world().clock);
    let (sender, receiver) = mpsc::channel();
    // A blocked thread is left behind: nothing could end it.
    thread::spawn(move || {
        let held: Vec<_> = (0..most).map_while(|_| limiter.try_admit(ask).ok()).collect();
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

/// Law 2: a stale reading of the clock adds nothing.
pub(super) fn a_stale_reading_adds_nothing<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    let Some(refill) = suite.refill.filter(|_| !suite.holds) else {
        return Ok(());
    };
    let (world, twin) = (suite.world(), suite.world());
    for world in [&world, &twin] {
        std::mem::forget(world.fill(suite.ask, suite.plenty()));
    }
    let stale = ClockReading::at(&world.clock, world.clock.now());
    for world in [&world, &twin] {
        world.clock.advance(refill);
        std::mem::forget(world.fill(suite.ask, suite.plenty()));
    }
    let admitted = world.limiter.try_reserve(&Demand::new(&suite.ask, &stale)).is_ok();
    law.ensure(!admitted, || {
        "nothing is left, and an earlier reading of the clock is admitted".into()
    })?;
    let (after, before) = (suite.future(&world, Vec::new()), suite.future(&twin, Vec::new()));
    law.ensure(after == before, || {
        format!("after an earlier reading of the clock, {after:?} are admitted, not {before:?}")
    })
}

/// Law 3: a settlement to less never leaves more than an admission that only took what it keeps.
pub(super) fn a_settlement_mints_nothing<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    let Some((cost, actual)) = suite.settle else {
        return Ok(());
    };
    for settled in 1..=suite.capacity {
        let (world, twin) = (suite.world(), suite.world());
        let mut held = world.fill(suite.ask, settled);
        let twins = twin.fill(suite.ask.cost(cost, actual), settled);
        for permit in &mut held {
            let legs = permit.settle(cost, actual);
            law.ensure(legs.is_ok(), || format!("no leg counts what is settled: {legs:?}"))?;
        }
        let (after, before) = (suite.future(&world, held), suite.future(&twin, twins));
        law.ensure(at_most(&after, &before), || {
            format!("{settled} were settled to less, and {after:?} are admitted, not {before:?}")
        })?;
    }
    Ok(())
}

/// Law 4: a raised limit holds at once.
pub(super) fn a_change_holds_at_once<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    let Some(loosen) = &suite.loosen else { return Ok(()) };
    let world = suite.world();
    let _held = world.fill(suite.ask, suite.capacity);
    loosen(&world.limiter);
    law.ensure(world.admit(suite.ask).is_some(), || {
        "the limit was raised, and nothing more is admitted".into()
    })
}

/// Law 1: an ask for more than is left changes nothing, at any fill level.
pub(super) fn a_refusal_leaves_no_trace<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    for taken in 0..=suite.capacity {
        let (world, twin) = (suite.world(), suite.world());
        let held = world.fill(suite.ask, taken);
        let twins = twin.fill(suite.ask, taken);
        for _ in 0..3 {
            let too_much = times(suite.ask, suite.capacity - taken + 1);
            law.ensure(world.admit(too_much).is_none(), || {
                format!(
                    "with {taken} of {} taken, more than the rest was admitted",
                    suite.capacity
                )
            })?;
        }
        law.ensure(world.ready(suite.ask) == twin.ready(suite.ask), || {
            format!("with {taken} taken, a refusal has moved the next instant")
        })?;
        let (after, before) = (suite.future(&world, held), suite.future(&twin, twins));
        law.ensure(after == before, || {
            format!("with {taken} taken, a refusal has left a trace: {after:?} admitted from then on, not {before:?}")
        })?;
    }
    Ok(())
}

/// Law 3 at one instant: admissions that were cancelled, in any order, leave no trace.
pub(super) fn cancel_restores<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    for taken in 0..suite.capacity {
        for order in ["only", "first", "last", "middle"] {
            let (world, twin) = (suite.world(), suite.world());
            let held = world.fill(suite.ask, taken);
            let twins = twin.fill(suite.ask, taken);
            let mut rest = world.fill(suite.ask, if order == "only" { 1 } else { suite.plenty() });
            while !rest.is_empty() {
                let index = match order {
                    "only" | "first" => 0,
                    "last" => rest.len() - 1,
                    _ => rest.len() / 2,
                };
                rest.remove(index).cancel();
            }
            let (after, before) = (suite.future(&world, held), suite.future(&twin, twins));
            let exact = suite.exact || order == "only";
            law.ensure(after == before || (!exact && at_most(&after, &before)), || {
                format!(
                    "with {taken} taken, the rest admitted and cancelled ({order} first): {after:?} admitted from then \
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
        for count in 1..=suite.capacity {
            let (world, twin) = (suite.world(), suite.world());
            let permits = world.fill(suite.ask, count);
            world.clock.advance(delay);
            twin.clock.advance(delay);
            let held = world.fill(suite.ask, suite.plenty());
            let twins = twin.fill(suite.ask, held.len());
            if twins.len() < held.len() {
                return law.ensure(false, || "an admission freed capacity for more".into());
            }
            permits.into_iter().for_each(Permit::cancel);
            let (after, before) = (suite.future(&world, held), suite.future(&twin, twins));
            law.ensure(at_most(&after, &before), || {
                format!("cancelled {delay:?} later, {count} have become more: {after:?}, not {before:?}")
            })?;
            if suite.refill.is_none() {
                law.ensure(after == before, || {
                    format!("cancelled later, not all of {count} came back: {after:?}, not {before:?}")
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

/// Law 5: refused just before the instant that it says, admitted at it; an event if the instant is unknown; waiters ahead count.
pub(super) fn the_wait_is_exact<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
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
            || format!("all is held, and `look` does not say that it takes an event: {exhausted:?}"),
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

/// Law 5: an ask that no instant can admit is refused as oversized and is never ready, at any fill level.
pub(super) fn an_oversized_ask_is_refused_for_good<L: Limiter + 'static>(
    suite: &Suite<L>,
    law: &mut Tally<'_>,
) -> Verdict {
    let Some(ask) = suite.never_fits else { return Ok(()) };
    let world = suite.world();
    for taken in 0..=suite.capacity {
        let ready = world.ready(ask);
        law.ensure(ready.never, || {
            format!("with {taken} taken, `look` does not say that {ask:?} never fits: {ready:?}")
        })?;
        let refused = world.limiter.try_admit(ask).map(drop).map_err(|refused| {
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

/// Checks an exhausted rate that other processes share: `look` names an event and no instant. Once all capacity has come
/// back it is ready, and admits.
fn in_turn<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    for asks in 1..=suite.capacity {
        let world = suite.world();
        std::mem::forget(world.fill(suite.ask, suite.capacity));
        let ask = times(suite.ask, asks);
        for _ in 0..3 {
            let ready = world.ready(ask);
            law.ensure(ready.event && !ready.never && world.admit(ask).is_none(), || {
                format!("{asks} asks wait for a turn, and `look` does not say so: {ready:?}")
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

/// Checks the instants of `asks` asks five times in a row, from an exhausted rate on.
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
                format!("`look` says that {asks} asks are admitted now ({ready:?}), and they are refused")
            })?;
            continue;
        };
        law.ensure(!ready.never && !ready.event, || {
            format!("a rate waits for time alone: {ready:?}")
        })?;
        world
            .clock
            .advance(world.clock.between(now, at) - Duration::from_nanos(1));
        law.ensure(world.admit(ask).is_none(), || {
            format!("{asks} asks are admitted 1 ns before the instant that was told")
        })?;
        law.ensure(world.ready(ask).not_before == Some(at), || {
            "the instant moves while nothing happens".into()
        })?;
        world.clock.advance(Duration::from_nanos(1));
        law.ensure(world.admit(ask).is_some(), || {
            format!("{asks} asks are refused at the instant that was told")
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

/// The instant that the limiter answers a policy for a waiter behind `ahead` others, which leave the queue again. `None`
/// if a policy does not wait for this limiter.
#[allow(clippy::option_option)]
fn behind<L: Limiter + 'static>(
    suite: &Suite<L>,
    world: &World<L>,
    ahead: usize,
) -> Result<Option<Option<Instant>>, Violation> {
    let recorder = Arc::new(Recorder::new(Arc::clone(&world.limiter)));
    let policy = policy_over(&world.clock, Arc::clone(&recorder))?;
    let mut waiters: Vec<_> = (0..=ahead)
        .map(|_| Box::pin(policy.admit_timeout(suite.ask, FAR)))
        .collect();
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
