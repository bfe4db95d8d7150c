//! Laws 5 and 2 where the core's guards stand between: each ticket ends once, and a later leg's refusal or panic gives
//! back what the limiter gave.

use super::recorder::Recorder;
use super::suite::{Suite, Tally, Violation};
use crate::core::ask::{Ask, Demand};
use crate::core::limiter::{Limiter, LimiterExt, Outcome};
use crate::core::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::time::ClockReading;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

type Verdict = Result<(), Violation>;

const OUTCOMES: [Outcome; 4] = [Outcome::Success, Outcome::Failure, Outcome::Overload, Outcome::Ignored];

/// Law 5: capacity comes back with the finish of what holds it, once, and with nothing else.
pub(super) fn ends_once<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    guards_end_each_ticket_once(suite, law)?;
    for outcome in OUTCOMES {
        let world = suite.world();
        for permit in world.fill(suite.ask, suite.capacity) {
            permit.finish(outcome);
        }
        if suite.holds {
            if let Some(refill) = suite.refill {
                world.clock.advance(refill);
            }
            let back = world.fill(suite.ask, suite.plenty()).len();
            law.ensure(back == suite.capacity, || {
                format!(
                    "all {} finished as {outcome:?}, and {back} are admitted",
                    suite.capacity
                )
            })?;
        } else {
            let back = world.fill(suite.ask, suite.plenty()).len();
            law.ensure(back == 0, || {
                format!("a rate has given {back} back because work finished as {outcome:?}")
            })?;
        }
    }
    for forgotten in 1..=suite.capacity {
        let world = suite.world();
        let mut held = world.fill(suite.ask, suite.capacity);
        for permit in held.drain(..forgotten) {
            permit.forget();
        }
        let at_once = world.fill(suite.ask, suite.plenty()).len();
        law.ensure(at_once == 0, || {
            format!("{forgotten} permits were forgotten, and {at_once} are admitted in their place")
        })?;
        drop(held);
        if let Some(refill) = suite.refill {
            world.clock.advance(refill);
        }
        let back = world.fill(suite.ask, suite.plenty()).len();
        let least = suite.capacity - if suite.holds { forgotten } else { 0 };
        // Where a rate binds as well, it may be the tighter of the two.
        let most = if suite.refill.is_some() { suite.capacity } else { least };
        law.ensure((least..=most).contains(&back), || {
            format!("{forgotten} forgotten, the rest finished: {back} are admitted, not {least}")
        })?;
    }
    Ok(())
}

/// Every way in which a permit or a reservation can end.
fn guards_end_each_ticket_once<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    let world = suite.world();
    let recorder = Recorder::new(Arc::clone(&world.limiter));
    type Way<L> = fn(&Recorder<L>, Ask);
    let ways: [(&str, Way<Arc<L>>); 8] = [
        ("a permit is dropped", |gate, ask| drop(gate.try_admit(ask))),
        ("a permit is finished", |gate, ask| {
            if let Ok(permit) = gate.try_admit(ask) {
                permit.finish(Outcome::Success);
            }
        }),
        ("a reservation is dropped", |gate, ask| drop(gate.reserve(ask))),
        ("a reservation is committed", |gate, ask| {
            if let Ok(reservation) = gate.reserve(ask) {
                drop(reservation.commit());
            }
        }),
        ("the work panics", |gate, ask| {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _permit = gate.try_admit(ask);
                resume_unwind(Box::new(Quiet));
            }));
            drop(panicked);
        }),
        ("a later leg refuses", |gate, ask| {
            let _ = gate.and(Stub::Refuses).try_admit(ask).map(drop);
        }),
        ("it is two legs of one", |gate, ask| drop(gate.and(gate).try_admit(ask))),
        ("a permit is forgotten", |gate, ask| {
            if let Ok(permit) = gate.try_admit(ask) {
                permit.forget();
            }
        }),
    ];
    for (name, way) in ways {
        if let Some(refill) = suite.refill {
            world.clock.advance(refill);
        }
        way(&recorder, suite.ask);
        let complaint = recorder.complaint();
        law.ensure(complaint.is_none(), || {
            format!("when {name}, {}", complaint.unwrap_or_default())
        })?;
    }
    Ok(())
}

/// Law 2 through a composition: the limiter's own reservation is undone.
pub(super) fn a_later_leg_that_refuses_or_panics_leaves_no_trace<L: Limiter + 'static>(
    suite: &Suite<L>,
    law: &mut Tally<'_>,
) -> Verdict {
    for taken in 0..=suite.capacity {
        for stub in [Stub::Refuses, Stub::Panics] {
            let (world, twin) = (suite.world(), suite.world());
            let held = world.fill(suite.ask, taken);
            let twins = twin.fill(suite.ask, taken);
            let both = Arc::clone(&world.limiter).and(stub);
            let admitted = catch_unwind(AssertUnwindSafe(|| both.try_admit(suite.ask).is_ok()));
            law.ensure(!matches!(admitted, Ok(true)), || {
                "admitted although a leg refuses".into()
            })?;
            let (after, before) = (suite.future(&world, held), suite.future(&twin, twins));
            law.ensure(after == before, || {
                format!(
                    "with {taken} taken and a later leg that {stub:?}: {after:?} admitted from then on, not {before:?}"
                )
            })?;
        }
    }
    Ok(())
}

/// The payload of a panic that is meant to happen.
struct Quiet;

/// A leg that never admits.
#[derive(Clone, Copy, Debug)]
enum Stub {
    Refuses,
    Panics,
}

impl Limiter for Stub {
    type Ticket = ();
    fn try_reserve(&self, demand: Demand<'_>) -> Result<(), Refusal<'_>> {
        match self {
            Self::Refuses => Err(Refusal::new(Reason::Saturated, "stub", demand.units(), Wait::Event)),
            Self::Panics => resume_unwind(Box::new(Quiet)),
        }
    }
    fn cancel(&self, (): (), _: &ClockReading) {}
    fn finish(&self, (): (), _: Outcome, _: &ClockReading) {}
    fn forget(&self, (): ()) {}
    fn ready_at(&self, _: Demand<'_>) -> ReadyAt<'_> {
        ReadyAt::on_event("stub")
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn crate::sync::wait_queue::WaitQueue)) {}
}
