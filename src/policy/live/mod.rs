//! Legs that are changed while they run: a policy whose rules are reloaded.
//!
//! [`PolicySpec::build`](super::spec::PolicySpec::build) makes a `Policy<LiveLegs>`, and
//! [`Policy::apply`](crate::Policy::apply) gives it another version. What a version says of a leg is one of:
//!
//! | the leg | what becomes of it |
//! |---|---|
//! | is unchanged | it keeps its state, to the last token |
//! | has other numbers | it keeps its state by its `inherit` rule; permits that are held stay held |
//! | has another kind, cost, or setting that cannot be changed in place (see below) | it is another leg, and starts fresh |
//! | is gone | nobody is asked for it any more; what was admitted by it ends there |
//! | comes back | it goes on from the state that it had, and that time has passed over |
//!
//! Links and peak tables go on from what is known of the load they look at: what was measured, and which marks it was above. When
//! the load, and no version, changes the numbers of a leg, nothing is given: see [`Peak`](super::spec::Peak).
//!
//! What cannot be changed in place: `segments`, `entries`, the `period` and `cold_factor` of a warm-up, and all numbers
//! of a breaker.
//!
//! A version is checked before anything is touched. It is taken whole or refused whole.
//!
//! # What an admission sees
//! All of the old rules, or all of the new ones, never some of each. That is done in two steps. First every number that
//! becomes stricter does so; then the new set of legs is put in force, and then the other numbers follow. Who was asking
//! while the set was put in force gives back what it has taken and asks again. Between the steps both rules hold, the
//! stricter number of each: a refusal in that time may be one that neither version alone would give, and whoever waits is
//! told when it is over. A number changes in one of the steps only, so that the two come to the stated transition, and the first
//! gives nothing.
//!
//! Versions come one after the other, each told what it has changed: who hands one in waits for whoever is before him, for a few
//! steps in which no foreign code runs. An admission never waits for that. One that finds numbers to be changed for a load, while a
//! version is being put in force, leaves it to those who come after.
//!
//! # Who waits
//! The queue keeps its order, and all waiters are judged by the new rules at once. A waiter that no instant can admit any more is
//! refused, as is one whose turn now comes after its deadline. Deadlines stay.
//!
//! # Memory
//! A leg that is gone is kept, with its state, for whoever was admitted by it and in case it comes back; and so is each
//! list of legs that has ever been in force, with its marks and its peak tables. A version that changes quotas, limits,
//! windows, `inherit`, or the line keeps nothing. So memory grows with the number of *different* legs, links and tables
//! that a policy has ever had: by about 1.1 KB for a token bucket and the list that it stands in (measured over 2,000 of
//! them), and by what a window or a log holds. A version that has been in force before, and comes back, keeps nothing.

mod advice;
mod apply;
mod changes;
mod decision;
mod draft;
mod limiter;
mod link;
mod node;
mod peaks;
mod set;
mod status;
mod stricter;

pub use advice::OrderAdvice;
pub use changes::{Applied, Change, Changes};
pub use decision::{Decision, LegDecision, MeasuredLoad, Verdict};
pub use status::LegStatus;

pub(super) use set::MAX_LEGS;

use crate::policy::spec::PolicySpec;
use crate::sync::arena::Arena;
use crate::sync::notify::Notify;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::AtomicU64;
use crate::time::Clock;
use draft::Known;
use set::LegSet;
use std::fmt;
use std::sync::OnceLock;

/// The legs of a policy that can be reloaded. See the [module](self).
pub struct LiveLegs {
    clock: Clock,
    /// How many versions have been put in force, and the number of the set that is: `count << 32 | set`.
    current: AtomicU64,
    /// Every list of legs that has ever been in force.
    sets: Arena<LegSet>,
    /// The turn to change legs, and what there is to make a version of. No foreign code runs under its lock.
    turn: Mutex<Known>,
    said: Mutex<Said>,
    /// Rings when legs have been changed and the turn is free again, and when a load may have fallen.
    notify: Notify,
    /// Told of each version that is in force.
    listener: OnceLock<Listener>,
}

type Listener = Box<dyn Fn(&PolicySpec) + Send + Sync>;

/// The version that was put in force last.
#[derive(Default)]
struct Said {
    spec: PolicySpec,
    version: u64,
}

impl LiveLegs {
    /// The version that was applied last.
    pub fn spec(&self) -> PolicySpec {
        self.said.lock().spec.clone()
    }

    /// Its number: the policy starts with 1.
    pub fn version(&self) -> u64 {
        self.said.lock().version
    }
}

impl fmt::Debug for LiveLegs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = self.said.lock();
        let legs: Vec<_> = said.spec.legs.iter().map(|leg| &leg.name).collect();
        f.debug_struct("LiveLegs")
            .field("version", &said.version)
            .field("legs", &legs)
            .finish_non_exhaustive()
    }
}
