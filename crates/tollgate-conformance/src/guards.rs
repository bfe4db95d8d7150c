//! Laws 1, 2 and 9 through the core's guards: each ticket ends once, and a later leg's refusal or panic returns what the limiter
//! granted.

use super::recorder::Recorder;
use super::suite::{Suite, Tally, Violation};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use tollgate::{Ask, Demand, Description, Limiter, LimiterExt, Outcome, Reason, Refusal, Wait};

type Verdict = Result<(), Violation>;

const OUTCOMES: [Outcome; 4] = [Outcome::Success, Outcome::Failure, Outcome::Overload, Outcome::Ignored];

/// Law 2: `finish` returns the capacity that a permit holds, once, and nothing else does.
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
                format!("a rate has returned {back} because work finished as {outcome:?}")
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
        // If a rate binds as well, it may be the tighter of the two.
        let most = if suite.refill.is_some() { suite.capacity } else { least };
        law.ensure((least..=most).contains(&back), || {
            format!("{forgotten} forgotten, the rest finished: {back} are admitted, not {least}")
        })?;
    }
    Ok(())
}

/// Ends a permit in every possible way.
fn guards_end_each_ticket_once<L: Limiter + 'static>(suite: &Suite<L>, law: &mut Tally<'_>) -> Verdict {
    let world = suite.world();
    let recorder = Recorder::new(Arc::clone(&world.limiter));
    type Way<L> = fn(&Recorder<L>, Ask);
    let ways: [(&str, Way<Arc<L>>); 7] = [
        ("a permit is dropped", |gate, ask| drop(gate.try_admit(ask))),
        ("a permit is finished", |gate, ask| {
            if let Ok(permit) = gate.try_admit(ask) {
                permit.finish(Outcome::Success);
            }
        }),
        ("a permit is cancelled", |gate, ask| {
            if let Ok(permit) = gate.try_admit(ask) {
                permit.cancel();
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

/// Law 1 through a composition: a later leg refuses, and the limiter's own admission is undone.
pub(super) fn a_later_leg_that_refuses_leaves_no_trace<L: Limiter + 'static>(
    suite: &Suite<L>,
    law: &mut Tally<'_>,
) -> Verdict {
    leaves_no_trace(suite, law, "a later leg that refuses", |limiter, ask| {
        limiter.and(Stub::Refuses).try_admit(ask).is_ok()
    })
}

/// Law 9: a leg or a condition that panics ends its own call alone.
pub(super) fn code_of_users_that_panics_leaves_no_trace<L: Limiter + 'static>(
    suite: &Suite<L>,
    law: &mut Tally<'_>,
) -> Verdict {
    leaves_no_trace(suite, law, "a later leg that panics", |limiter, ask| {
        limiter.and(Stub::Panics).try_admit(ask).is_ok()
    })?;
    leaves_no_trace(suite, law, "a later leg whose condition panics", |limiter, ask| {
        let panics = |_: &Ask| resume_unwind(Box::new(Quiet));
        limiter.and(Stub::Refuses.when(panics)).try_admit(ask).is_ok()
    })
}

/// Checks that an attempt which fails leaves no trace, at any fill level.
fn leaves_no_trace<L: Limiter + 'static>(
    suite: &Suite<L>,
    law: &mut Tally<'_>,
    name: &str,
    attempt: impl Fn(Arc<L>, Ask) -> bool,
) -> Verdict {
    for taken in 0..=suite.capacity {
        let (world, twin) = (suite.world(), suite.world());
        let held = world.fill(suite.ask, taken);
        let twins = twin.fill(suite.ask, taken);
        let limiter = Arc::clone(&world.limiter);
        let admitted = catch_unwind(AssertUnwindSafe(|| attempt(limiter, suite.ask)));
        law.ensure(!matches!(admitted, Ok(true)), || format!("admitted with {name}"))?;
        let (after, before) = (suite.future(&world, held), suite.future(&twin, twins));
        law.ensure(after == before, || {
            format!("with {taken} taken and {name}: {after:?} admitted from then on, not {before:?}")
        })?;
    }
    Ok(())
}

/// The payload of an intended panic.
struct Quiet;

/// A leg that never admits.
#[derive(Clone, Copy, Debug)]
enum Stub {
    Refuses,
    Panics,
}

impl Limiter for Stub {
    type Ticket = ();
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.look(demand)
    }
    fn cancel(&self, (): ()) {}
    fn finish(&self, (): (), _: Outcome) {}
    fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
        match self {
            Self::Refuses => Err(Refusal::new(Reason::Saturated, "stub", Wait::EVENT)),
            Self::Panics => resume_unwind(Box::new(Quiet)),
        }
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new("stub"));
    }
}
