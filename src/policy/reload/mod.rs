//! Legs that change while they run: a policy that is reloaded.
//!
//! [`PolicySpec::build`](super::spec::PolicySpec::build) makes a `Policy<ReloadableLegs>`, and
//! [`Policy::apply`](crate::Policy::apply) puts another version in force. By what the version states, a leg changes as follows:
//!
//! | the leg | its state |
//! |---|---|
//! | is unchanged | is kept, to the last token |
//! | has other numbers | is kept by its `inherit` rule; permits that are held stay held |
//! | has another kind, cost, or setting that cannot be changed in place (see below) | starts fresh: it is another leg |
//! | is gone | serves the permits that it has admitted, until they end; it is not asked any more |
//! | comes back | goes on from the state that it had, and that time has passed over |
//!
//! Conditions and peak tables keep their knowledge of the load: what was measured, and which marks it was above. When the load,
//! and no version, changes the numbers of a leg, nothing is given: see [`Peak`](super::spec::Peak).
//!
//! These cannot be changed in place: `segments`, `entries`, the `period` and `cold_factor` of a warm-up, and all numbers of a
//! breaker and of an adaptive leg, `of` and `class` of a partition. A kind of your own says so by [`Rule::fixed`](crate::policy::spec::Rule::fixed).
//!
//! A version is checked before anything is touched. It is taken whole or refused whole.
//!
//! # What an admission sees
//! All of the old rules, or all of the new ones, never some of each. A version comes in force in three steps. First each number
//! that tightens changes; then the new set of legs is put in force; then the other numbers follow. An admission that was under
//! way at the second step gives back its tickets and asks again.
//!
//! Between the steps both rules hold, the tighter number of each. A refusal in that time may be one that neither version alone
//! would give, and the waiters are notified at the end. A number changes in one step only, so that the steps together are the
//! stated transition, and the first gives nothing.
//!
//! Versions come one after the other, and each reports its changes. The caller of a version waits for the one before, for a few
//! steps in which no foreign code runs. An admission never waits for a version. One that finds numbers to be changed for a
//! load, while a version is being put in force, leaves that to the admissions after it.
//!
//! # Waiters
//! The queue keeps its order, and all waiters are judged by the new rules at once. A waiter that no instant can admit any more
//! is refused, as is one whose turn now comes after its deadline. Deadlines stay.
//!
//! # Memory
//! A leg that is gone is kept, with its state, for the permits that it has admitted and in case it comes back. So is each list
//! of legs that has ever been in force, with its conditions and its peak tables. A version that changes quotas, limits,
//! windows, `inherit`, or the queue keeps nothing. So memory grows with the number of *different* legs, conditions and tables
//! that a policy has ever had: by about 1.7 KB for a token bucket and its list (measured over 2,000 of them), and by the
//! contents of a window or a log. A version that has been in force before, and comes back, keeps nothing.

mod changes;
mod condition;
mod leg_set;
mod leg_state;
mod legs;
mod registry;
mod status;

pub use changes::{Applied, Change, Changes};
pub(super) use leg_set::MAX_LEGS;
pub use legs::ReloadableLegs;
pub(super) use registry::Scrap;
pub use status::LegStatus;
