//! The legs of one version, in order, which an admission asks and by which its ticket is read.
//!
//! A set never changes. Its legs do, but only their numbers. Its tickets carry its number, so that they find it again
//! when another one is in force.

use super::condition::{Condition, PeakTable};
use super::leg_state::LegState;
use crate::core::all_or_nothing::{AllOrNothing, LongTickets};
use crate::core::ask::Demand;
use crate::core::conditional::{Meter, sooner};
use crate::core::limiter::{Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::core::ticket::BoxTicket;
use crate::sync::notify::together;
use crate::sync::unwind::{both, each};
use crate::sync::wait_queue::QueueId;
use crate::time::{Clock, ClockReading, Instant};
use std::ops::Range;
use std::sync::Arc;
use std::thread::panicking;

// A ticket: the number of its set, then the words of the legs with a head of their own, or the number of the buffer that
// has those.
/// Which legs were taken, a bit for each.
const TAKEN: usize = 0;
/// When it was reserved, and then when it started.
const SINCE: usize = 1;
/// The words before those of the legs.
const HEAD: usize = 2;
/// The words that fit into a ticket.
const INLINE: usize = BoxTicket::WORDS_INLINE - 1;
/// The most legs of a policy.
pub(in crate::policy) const MAX_LEGS: usize = u64::BITS as usize;

/// In the first word of a ticket, beside the number of its set: its legs have nothing to commit.
const NO_COMMIT: u64 = 1 << 32;

/// The number of the set that a ticket was made by.
#[inline]
pub(super) fn index_of(ticket: &BoxTicket) -> u32 {
    ticket.words()[0] as u32
}

/// True where the legs of a ticket have something to commit.
#[inline]
pub(super) fn has_commit(ticket: &BoxTicket) -> bool {
    ticket.words()[0] & NO_COMMIT == 0
}

/// A leg in a set.
pub(super) struct VersionLeg {
    pub(super) state: Arc<LegState>,
    pub(super) words: Range<usize>,
    /// The word of its units, where they are looked up: the first of a semaphore's, else one behind the others.
    pub(super) units: usize,
    /// Its bit among those that were taken.
    pub(super) bit: u64,
    pub(super) shadow: bool,
    pub(super) condition: Option<Arc<Condition>>,
    pub(super) peak: Option<Arc<PeakTable>>,
    /// The meters that measure it for other legs.
    pub(super) meters: Vec<Arc<Meter>>,
}

impl VersionLeg {
    /// This leg's view of a demand.
    #[inline(always)]
    fn demand<'a>(&self, demand: &Demand<'a>) -> Option<Demand<'a>> {
        match self.state.per {
            Some(cost) => demand.per(cost),
            None => Some(demand.per_call()),
        }
    }
}

/// The legs of one version.
pub(super) struct LegSet {
    legs: Vec<VersionLeg>,
    /// Its number, as it stands in its tickets.
    pub(super) index: u32,
    /// [`NO_COMMIT`] if no leg, and no meter, has something to commit.
    no_commit: u64,
    clock: Clock,
    /// A leg depends on the load of another, which may fall at any end of a permit.
    pub(super) linked: bool,
    /// Units of other legs than semaphores are held.
    pub(super) holds_others: bool,
    /// A leg has a peak table.
    pub(super) peaks: bool,
    /// A leg has a meter, which needs the duration of work.
    timed: bool,
    /// The positions of the legs whose units are held, a bit for each, and of those whose units are written into the ticket.
    holds: u64,
    notes: u64,
    /// Those of the legs whose commit does something, and of those whose end does.
    commits: u64,
    finishes: u64,
    long: Option<Box<LongTickets>>,
}

impl LegSet {
    pub(super) fn new(index: u32, mut legs: Vec<VersionLeg>, clock: &Clock) -> Self {
        let mut at = HEAD;
        for (position, leg) in legs.iter_mut().enumerate() {
            leg.bit = 1 << position;
            let words = leg.words.len();
            leg.words = at..at + words;
            leg.units = at;
            at += words;
            if leg.has_units_behind() {
                leg.units = at;
                at += 1;
            }
        }
        let bits = |has: &dyn Fn(&VersionLeg) -> bool| {
            let having = legs.iter().filter(|leg| has(leg)).map(|leg| leg.bit);
            having.fold(0, |all, bit| all | bit)
        };
        let commits = bits(&|leg| leg.state.body.erased().callbacks().commit);
        let timed = legs.iter().any(|leg| !leg.meters.is_empty());
        Self {
            index,
            no_commit: if commits == 0 && !timed { NO_COMMIT } else { 0 },
            linked: legs.iter().any(|leg| leg.condition.is_some() || leg.peak.is_some()),
            holds_others: legs
                .iter()
                .any(|leg| leg.state.holds && leg.state.semaphore().is_none()),
            peaks: legs.iter().any(|leg| leg.peak.is_some()),
            holds: bits(&|leg| leg.state.holds),
            notes: bits(&VersionLeg::has_units_behind),
            commits,
            finishes: bits(&|leg| leg.state.body.erased().callbacks().finish),
            long: LongTickets::unless_fits(at, INLINE),
            timed,
            legs,
            clock: clock.clone(),
        }
    }

    pub(super) fn legs(&self) -> &[VersionLeg] {
        &self.legs
    }

    /// The leg of this state, if it has one.
    pub(super) fn leg(&self, state: &Arc<LegState>) -> Option<&VersionLeg> {
        self.legs.iter().find(|leg| Arc::ptr_eq(&leg.state, state))
    }

    /// Takes from every leg that applies, or from none.
    #[inline]
    pub(super) fn reserve<'a>(&'a self, demand: &Demand<'_>, ticket: &mut BoxTicket) -> Result<(), Refusal<'a>> {
        let words = ticket.words_mut();
        words[0] = u64::from(self.index) | self.no_commit;
        match &self.long {
            None => self.reserve_words(demand, &mut words[1..]),
            Some(long) => long.fill(&mut words[1..], |words| self.reserve_words(demand, words)),
        }
    }

    #[inline]
    fn reserve_words<'a>(&'a self, demand: &Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'a>> {
        words[TAKEN] = 0;
        self.reserve_all(demand, words)?;
        if self.notes != 0 {
            self.note(demand, words);
        }
        self.held(words).for_each(|(state, units)| state.hold(units));
        if self.timed {
            self.measure(demand, words);
        }
        Ok(())
    }

    /// Whether a leg with a condition applies.
    #[cold]
    fn applies(&self, leg: &VersionLeg, demand: &Demand<'_>) -> bool {
        let condition = leg.condition.as_ref();
        condition.is_none_or(|condition| condition.gate.is_exceeded(demand.now(&self.clock)))
    }

    /// What becomes of a leg that refuses: in shadow mode it is passed.
    #[cold]
    fn refused<'a>(
        &'a self,
        leg: &'a VersionLeg,
        demand: &Demand<'_>,
        refusal: Refusal<'a>,
    ) -> Result<(), Refusal<'a>> {
        if leg.shadow {
            leg.state.trial.refused(refusal.reason());
            return Ok(());
        }
        let now = demand.now(&self.clock);
        for meter in &leg.meters {
            meter.refused(now);
        }
        let refusal = refusal.named(&leg.state.name);
        Err(match leg.may_change_for(refusal.units()) {
            true => sooner(refusal, leg.ends(now), &self.clock, now),
            false => refusal,
        })
    }

    /// Notes the units of those legs whose own words do not show them.
    #[cold]
    fn note(&self, demand: &Demand<'_>, words: &mut [u64]) {
        for leg in self.legs.iter().filter(|leg| self.notes & leg.bit != 0) {
            words[leg.units] = leg.state.units(demand.ask()).unwrap_or(0);
        }
    }

    /// Counts the admission at the meters, and notes its instant in the ticket.
    #[cold]
    fn measure(&self, demand: &Demand<'_>, words: &mut [u64]) {
        let now = demand.now(&self.clock);
        words[SINCE] = now.ticks();
        for leg in self.taken(words) {
            for meter in &leg.meters {
                meter.admitted(words[leg.units], now);
            }
        }
    }

    /// The legs that a ticket has taken from.
    fn taken<'a>(&'a self, words: &[u64]) -> impl Iterator<Item = &'a VersionLeg> + use<'a> {
        let taken = words[TAKEN];
        self.legs.iter().filter(move |leg| taken & leg.bit != 0)
    }

    /// The legs of which a ticket holds units, and their number.
    #[inline]
    fn held<'a>(&'a self, words: &'a [u64]) -> impl Iterator<Item = (&'a LegState, u64)> + use<'a> {
        let mut left = words[TAKEN] & self.holds;
        std::iter::from_fn(move || {
            let leg = self.legs.get(left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some((&*leg.state, words[leg.units]))
        })
    }

    /// Takes the units of the ticket off the load, before its permits come back: so the next holders do not count them twice.
    #[inline]
    fn let_go(&self, words: &[u64]) {
        self.held(words).for_each(|(state, units)| state.let_go(units));
    }

    /// Shows `end` the words of a ticket for the last time.
    #[inline]
    fn end(&self, ticket: &BoxTicket, end: impl Fn(&[u64])) {
        let words = &ticket.words()[1..];
        match &self.long {
            None => end(words),
            Some(long) => long.end(words, end),
        }
    }

    #[inline]
    fn change<R: Default>(&self, ticket: &mut BoxTicket, change: impl FnOnce(&mut [u64]) -> R) -> R {
        let words = &mut ticket.words_mut()[1..];
        match &self.long {
            None => change(words),
            Some(long) => long.change(words, change),
        }
    }

    pub(super) fn cancel(&self, ticket: &BoxTicket, pass: &ClockReading) {
        self.end(ticket, |words| {
            self.let_go(words);
            if self.timed {
                let (reserved, now) = (Instant::from_ticks(words[SINCE]), pass.now(&self.clock));
                for leg in self.taken(words) {
                    let units = words[leg.units];
                    leg.meters
                        .iter()
                        .for_each(|meter| meter.cancelled(units, reserved, now));
                }
            }
            self.cancel_all(words, pass);
        });
    }

    #[inline]
    pub(super) fn commit(&self, ticket: &mut BoxTicket, pass: &ClockReading) {
        self.change(ticket, |words| {
            if self.timed {
                words[SINCE] = pass.now(&self.clock).ticks();
            }
            self.commit_all(words, pass);
        });
    }

    pub(super) fn settle(&self, ticket: &mut BoxTicket, actual: Settlement<'_>) -> u32 {
        self.change(ticket, |words| self.settle_all(words, actual))
    }

    #[inline]
    pub(super) fn finish(&self, ticket: &BoxTicket, outcome: Outcome, pass: &ClockReading) {
        self.end(ticket, |words| {
            self.let_go(words);
            match self.timed {
                false => match words[TAKEN] & self.finishes {
                    // Of one leg there is nothing to hold together.
                    one if one.is_power_of_two() && !panicking() => {
                        let leg = &self.legs[one.trailing_zeros() as usize];
                        self.finish_leg(leg, words, outcome, pass);
                    }
                    _ => self.finish_all(words, outcome, pass),
                },
                // The waiters that this frees are asked under the load that is left.
                true => together(|| {
                    both(
                        || self.ended(words, pass.now(&self.clock)),
                        || self.finish_all(words, outcome, pass),
                    );
                }),
            }
        });
    }

    /// Counts the end of the work at the meters.
    #[cold]
    fn ended(&self, words: &[u64], now: Instant) {
        let started = Instant::from_ticks(words[SINCE]);
        let meters = self.taken(words).flat_map(|leg| &leg.meters);
        each(meters, |meter| meter.ended(started, now));
    }

    pub(super) fn forget(&self, ticket: &BoxTicket) {
        self.end(ticket, |words| {
            self.let_go(words);
            self.forget_all(words);
        });
    }

    pub(super) fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        let ready = self.legs.iter().map(|leg| self.obeyed_ready_at(leg, demand));
        ready.fold(ReadyAt::NOW, ReadyAt::and)
    }

    fn obeyed_ready_at<'a>(&'a self, leg: &'a VersionLeg, demand: Demand<'_>) -> ReadyAt<'a> {
        if leg.shadow {
            return ReadyAt::NOW;
        }
        self.leg_ready_at(leg, demand).unwrap_or(ReadyAt::NOW)
    }

    /// The readiness of a leg, obeyed or not; `None` when it does not apply.
    pub(super) fn leg_ready_at<'a>(&'a self, leg: &'a VersionLeg, demand: Demand<'_>) -> Option<ReadyAt<'a>> {
        let condition = leg.condition.as_ref();
        if condition.is_some_and(|condition| !condition.gate.is_exceeded(demand.now(&self.clock))) {
            return None;
        }
        let state = &*leg.state;
        let Some(demand) = leg.demand(&demand) else {
            return Some(ReadyAt::never_for(Reason::Unpriced, &state.name, 0));
        };
        let ready = state.body.erased().ready_at(demand).named(&state.name);
        Some(match leg.may_change_for(demand.units()) {
            true => ready.or_at(leg.ends(demand.now(&self.clock))),
            false => ready,
        })
    }
}

impl VersionLeg {
    /// True where the demand has been granted a turn at this semaphore.
    #[cold]
    fn is_claimed(&self, demand: &Demand<'_>) -> bool {
        let semaphore = self.state.semaphore();
        semaphore.is_some_and(|semaphore| demand.queue_key(QueueId::of(semaphore)).is_some())
    }

    /// Gives back what was taken from a semaphore that holds more than its limit.
    #[cold]
    fn recheck(&self, demand: &Demand<'_>, words: &[u64]) -> Result<(), Refusal<'_>> {
        match self.state.semaphore() {
            Some(semaphore) if semaphore.debt() > 0 => {
                self.state.body.erased().cancel(words, demand.reading());
                let wait = Wait::Turn(semaphore);
                Err(Refusal::new(Reason::Saturated, &self.state.name, demand.units(), wait))
            }
            _ => Ok(()),
        }
    }

    /// True where the units are looked up, and its own words do not show them.
    fn has_units_behind(&self) -> bool {
        let looked_up = self.state.holds || !self.meters.is_empty();
        looked_up && self.state.semaphore().is_none()
    }

    /// True where it may admit an ask for `units` under another load.
    fn may_change_for(&self, units: u64) -> bool {
        let by_table = |table: &Arc<PeakTable>| units <= table.most();
        self.condition.is_some() || self.peak.as_ref().is_some_and(by_table)
    }

    /// When the load that makes it strict will have fallen, if that is known.
    fn ends(&self, now: Instant) -> Option<Instant> {
        let condition = self.condition.as_ref().and_then(|condition| condition.gate.ends(now));
        let peak = self.peak.as_ref().and_then(|peak| peak.ends(now));
        condition.into_iter().chain(peak).min()
    }
}

impl AllOrNothing for LegSet {
    type Leg = VersionLeg;

    #[inline(always)]
    fn legs(&self) -> &[VersionLeg] {
        &self.legs
    }

    #[inline(always)]
    fn reserve_leg<'a>(
        &'a self,
        leg: &'a VersionLeg,
        demand: &Demand<'_>,
        words: &mut [u64],
    ) -> Result<(), Refusal<'a>> {
        if leg.condition.is_some() && !self.applies(leg, demand) {
            return Ok(());
        }
        let Some(own) = leg.demand(demand) else {
            let unpriced = Refusal::new(Reason::Unpriced, &leg.state.name, 0, Wait::Never);
            return self.refused(leg, demand, unpriced);
        };
        let places = &mut words[leg.words.clone()];
        let claimed = demand.is_queued() && leg.is_claimed(&own);
        let mut result = leg.state.body.try_reserve(&own, places);
        // A turn that was granted before the limit was lowered would be an admission that the new rule does not allow.
        if claimed && result.is_ok() {
            result = leg.recheck(&own, places);
        }
        match result {
            Err(refusal) => return self.refused(leg, demand, refusal),
            Ok(()) if leg.shadow => leg.state.trial.admitted(),
            Ok(()) => {}
        }
        words[TAKEN] |= leg.bit;
        Ok(())
    }

    fn cancel_leg(&self, leg: &VersionLeg, words: &[u64], now: &ClockReading) {
        if words[TAKEN] & leg.bit != 0 {
            leg.state.body.erased().cancel(&words[leg.words.clone()], now);
        }
    }

    #[inline(always)]
    fn commit_leg(&self, leg: &VersionLeg, words: &mut [u64], now: &ClockReading) {
        if words[TAKEN] & self.commits & leg.bit != 0 {
            leg.state.body.erased().commit(&mut words[leg.words.clone()], now);
        }
    }

    fn settle_leg(&self, leg: &VersionLeg, words: &mut [u64], actual: Settlement<'_>) -> u32 {
        let actual = match leg.state.per {
            Some(cost) => actual.per(cost),
            None => actual.per_call(),
        };
        if words[TAKEN] & leg.bit == 0 {
            // It passed this one uncharged: there is nothing to correct, and no fault.
            return actual.actual().is_some().into();
        }
        leg.state.body.erased().settle(&mut words[leg.words.clone()], actual)
    }

    #[inline(always)]
    fn finish_leg(&self, leg: &VersionLeg, words: &[u64], outcome: Outcome, now: &ClockReading) {
        if words[TAKEN] & self.finishes & leg.bit != 0 {
            leg.state.body.finish(&words[leg.words.clone()], outcome, now);
        }
    }

    fn forget_leg(&self, leg: &VersionLeg, words: &[u64]) {
        if words[TAKEN] & leg.bit != 0 {
            leg.state.body.erased().forget(&words[leg.words.clone()]);
        }
    }
}
