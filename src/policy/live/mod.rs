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
//! told when it is over.
//!
//! # Who waits
//! The line stays as it is, and is judged by the new rules from its head. A deadline that somebody has got stays.
//!
//! # Memory
//! A leg that is gone is kept, with its state, for whoever was admitted by it and in case it comes back; and so is each
//! list of legs that has ever been in force. A version that changes numbers only keeps nothing. So memory grows with the
//! number of *different* legs that a policy has ever had, by less than a kilobyte each (a sliding window of 64 segments is
//! the largest, unless it is given more).

mod advice;
mod apply;
mod changes;
mod decision;
mod limiter;
mod link;
mod node;
mod set;
mod status;
mod stricter;

pub use advice::OrderAdvice;
pub use changes::{Applied, Change, Changes};
pub use decision::{Decision, LegDecision, Verdict};
pub use status::LegStatus;

pub(super) use set::MAX_WORDS;

use crate::policy::spec::PolicySpec;
use crate::sync::arena::Arena;
use crate::sync::bell::Bell;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::AtomicU64;
use crate::time::Clock;
use node::{Identity, Node};
use set::LegSet;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The legs of a policy that can be reloaded. See the [module](self).
pub struct LiveLegs {
    clock: Clock,
    /// How many versions have been put in force, and the number of the set that is: `count << 32 | set`.
    current: AtomicU64,
    /// Every list of legs that has ever been in force.
    sets: Arena<LegSet>,
    state: Mutex<State>,
    /// Rings when a version has been applied, and when a load may have fallen.
    bell: Bell,
    /// Told of each version that is in force.
    listener: OnceLock<Listener>,
}

type Listener = Box<dyn Fn(&PolicySpec) + Send + Sync>;

/// What only changes look at. Its lock is held for a few steps, and never while anything of a leg runs.
struct State {
    spec: PolicySpec,
    version: u64,
    /// Somebody has the turn to change legs.
    changing: bool,
    /// The version to apply after the one that is being applied.
    next: Option<PolicySpec>,
    /// Every leg there has ever been.
    nodes: BTreeMap<Identity, Arc<Node>>,
    /// How many sets there are.
    sets: u32,
}

impl LiveLegs {
    /// The version that was applied last.
    pub fn spec(&self) -> PolicySpec {
        self.state.lock().spec.clone()
    }

    /// Its number: the policy starts with 1.
    pub fn version(&self) -> u64 {
        self.state.lock().version
    }
}

impl fmt::Debug for LiveLegs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        let legs: Vec<_> = state.spec.legs.iter().map(|leg| &leg.name).collect();
        f.debug_struct("LiveLegs")
            .field("version", &state.version)
            .field("legs", &legs)
            .finish_non_exhaustive()
    }
}
