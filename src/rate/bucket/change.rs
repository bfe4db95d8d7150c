//! Changing the quota while the bucket runs, and starting the axis anew: the same step, under the writer's lock.

use super::book::Booked;
use super::give_back::given_between;
use super::given::Given;
use super::params::{Params, whole_ticks};
use super::word::{POSITION, Word};
use super::{BucketTicket, TokenBucket};
use crate::algo::ahead::Ahead;
use crate::rate::inherit::Withheld;
use crate::rate::quota::Quota;
use crate::sync::shim::atomic::Ordering;
use crate::time::Instant;

/// What a running bucket keeps when its quota changes.
///
/// No sequence of changes mints, but for [`Reset`](Self::Reset) and an unlimited quota, which both start anew: a change adds
/// no more than what the limit exceeds the largest one so far by, and what earlier changes have taken away. From 100 to 50
/// and back to 100, an empty bucket stays empty by every other rule.
///
/// ```
/// # use tollgate::{Inherit, ManualClock, Quota, TokenBucket};
/// let clock = ManualClock::new();
/// let bucket = TokenBucket::new(Quota::per_second(100)).on(&clock);
/// assert!(bucket.try_acquire(70).is_ok());
/// for quota in [50, 100, 50, 100].map(Quota::per_second) {
///     bucket.set_quota(quota, Inherit::Additive);
/// }
/// assert_eq!(bucket.available(), 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Inherit {
    /// The tokens that are there, up to the new burst.
    #[default]
    AsIs,
    /// The same share of the burst.
    Proportional,
    /// The tokens that are there, plus what the burst has grown by, or less what it has shrunk by; not below zero. Of a
    /// window: what was admitted still counts, all of it and nothing else, so that no window exceeds its limit.
    ///
    /// bucket4j's rule of this name adds in the same way where the burst grows, and takes nothing away where it shrinks.
    Additive,
    /// Nothing: it starts full.
    Reset,
}

/// What only changes of the quota touch.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) quota: Quota,
    pub(super) made_with: Quota,
    changes: Vec<Change>,
    /// Who gave back what, since the last change.
    pub(super) given: Given,
    /// How many changes there were.
    pub(super) era: u64,
    /// The bookings that have not begun.
    pub(super) ahead: Ahead<Booked>,
    /// In `2^-60` tokens.
    withheld: Withheld,
}

/// How to read a position of an earlier set of parameters. Distances are in `2^-60` tokens.
#[derive(Clone, Copy, Debug)]
struct Change {
    version: u64,
    before: Params,
    end: u64,
    after: Params,
    start: u64,
    /// How much the level was raised by the change itself; `None` when it was reset.
    raised: Option<i128>,
    /// What had been given back until then, as `TokenBucket::given` has it, and where that goes on from.
    given: u64,
    given_after: u64,
}

/// How many changes back a reservation can be cancelled.
const HISTORY: usize = 16;
/// Versions recur. Each time they do, what has been given back grows by this, in units: more than any reservation has left to
/// give back. So one of an earlier round gives back nothing. The count of units has 63 bits, hence 2^15 rounds of 2^15 versions
/// are told apart.
pub(super) const ROUND: u64 = 1 << 48;
pub(super) const FINE: u32 = 60;

pub(super) fn fine(units: u64, params: &Params) -> i128 {
    i128::from(units) << (FINE - params.scale)
}

impl TokenBucket {
    /// Changes the quota at once; `inherit` says what becomes of the tokens that are there. A debt stays.
    ///
    /// An unlimited quota counts nothing: the bucket is full after it, whatever the rule, and nothing that was taken
    /// before is given back. From one quota by interval to another the intervals go on from where the latest ended.
    pub fn set_quota(&self, quota: Quota, inherit: Inherit) {
        self.change_quota(|_| quota, inherit);
    }

    /// Starts anew, full. What was taken before is not given back any more.
    pub fn reset(&self) {
        self.change_quota(|quota| quota, Inherit::Reset);
    }

    fn change_quota(&self, change: impl FnOnce(Quota) -> Quota, inherit: Inherit) {
        {
            let mut writer = self.writer.lock();
            let now = self.clock.now();
            let quota = change(writer.quota);
            let after = self.compile(&quota, now);
            let mut withheld = writer.withheld;
            self.replace(&mut writer, now, after, |level, before, earlier| {
                let kept = i128::from(level) << (FINE - before.scale);
                let [old, new] = [before, &after].map(|params| fine(params.whole_burst(), params));
                let uncounted = before.is_unlimited() || after.is_unlimited();
                if inherit == Inherit::Reset || uncounted && !seeded!("bucket_counts_the_unlimited") {
                    withheld = Withheld::new(new);
                    return (new, None);
                }
                let wanted = match inherit {
                    Inherit::Proportional if level > 0 => {
                        let burst = before.whole_burst();
                        let share = i128::from(level) * i128::from(after.whole_burst()) / i128::from(burst);
                        share << (FINE - after.scale)
                    }
                    Inherit::Additive => kept + (new - old).max(-kept.max(0)),
                    _ => kept,
                };
                let left;
                (withheld, left) = earlier.change(kept, wanted.min(new), new);
                // What overflows is gone for those as well who give back later.
                let raised = if wanted > kept { left - kept } else { wanted - kept };
                (left, Some(raised))
            });
            writer.withheld = withheld;
            writer.quota = quota;
            writer.ahead.freeze();
        }
        self.notify.notify_reconfigured();
    }

    /// The parameters of another quota from `now` on. Under the writer's lock.
    fn compile(&self, quota: &Quota, now: Instant) -> Params {
        let (_, before) = self.read();
        if quota.is_by_interval() && before.step > 0 && !seeded!("bucket_intervals_restart") {
            let after = Params::compile(quota, &self.clock, before.latest_step(now));
            if after.lives(now) {
                return after;
            }
        }
        Params::compile(quota, &self.clock, now)
    }

    /// Starts the axis anew, with everything else as it is, when `now` lies beyond its life.
    #[cold]
    pub(super) fn start_anew(&self, now: Instant) {
        let mut writer = self.writer.lock();
        let (_, before) = self.read();
        if before.lives(now) {
            return;
        }
        // (What gains nothing lasts for ever.)
        let epoch = before.epoch_anew(whole_ticks(&writer.quota, &self.clock), now);
        let after = Params { epoch, ..before };
        let end = before.axis_beyond_life(now);
        let start = after.axis_at(now);
        loop {
            let word = Word(self.word.load(Ordering::Acquire));
            // Not more than full, `now`: so there is nothing by a reading from before the new start.
            let held = (i128::from(end) - i128::from(word.position())).min(i128::from(before.burst));
            let position = (i128::from(start) - held).clamp(0, i128::from(POSITION)) as u64;
            if self.publish(word, position, &after) {
                let (given, given_after) = self.go_on_giving(word.version());
                writer.remember(Change {
                    version: word.version(),
                    before,
                    end,
                    after,
                    start,
                    raised: Some(0),
                    given,
                    given_after,
                });
                return;
            }
        }
    }

    /// Replaces the parameters. `inherit` maps the level in units, and the old parameters, to the new level in `2^-60`
    /// tokens, and to how much that raised it.
    fn replace(
        &self,
        writer: &mut Writer,
        now: Instant,
        after: Params,
        mut inherit: impl FnMut(i64, &Params, Withheld) -> (i128, Option<i128>),
    ) {
        loop {
            let (word, before) = self.read();
            let level = Self::level(word, &before, now);
            let (level, raised) = inherit(level, &before, writer.withheld);
            let start = after.axis_at(now);
            let position = i128::from(start) - (level >> (FINE - after.scale));
            let position = position.clamp(0, i128::from(POSITION)) as u64;
            if self.publish(word, position, &after) {
                let (given, given_after) = self.go_on_giving(word.version());
                writer.remember(Change {
                    version: word.version(),
                    before,
                    end: before.axis_beyond_life(now),
                    after,
                    start,
                    raised,
                    given,
                    given_after,
                });
                return;
            }
        }
    }

    /// What was given back until the change from `version`, and what the count goes on from. Under the writer's lock.
    fn go_on_giving(&self, version: u64) -> (u64, u64) {
        // Relaxed, both: written under the lock that we hold. A reservation that sees the later version and the earlier count, or
        // the other way round, gives back nothing.
        let given = self.given.load(Ordering::Relaxed);
        if Word::next_version(version) > 0 {
            return (given, given);
        }
        let after = given.wrapping_add(2 * ROUND);
        self.given.store(after, Ordering::Relaxed);
        (given, after)
    }

    /// Moves to `after` and `position` from `word`, if it is still in force: the tag moves on by two. Under the writer's
    /// lock.
    fn publish(&self, word: Word, position: u64, after: &Params) -> bool {
        if seeded!("bucket_same_slot") {
            self.resting.store(after);
        }
        self.moving.store(after);
        let mut moving = word.next(position);
        // Release: whoever reads this tag reads the slot as written above. Pairs with `read`.
        if self
            .word
            .compare_exchange(word.0, moving.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        // Nobody's exchange succeeds any more that was computed with what rests here.
        self.resting.store(after);
        loop {
            let resting = moving.next(moving.position());
            // Release: as above.
            match self
                .word
                .compare_exchange_weak(moving.0, resting.0, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => moving = Word(seen),
            }
        }
    }
}

/// What a reservation under earlier parameters has to do with those in force. In `2^-60` tokens.
pub(super) struct Past {
    /// Where its position lies now.
    pub(super) position: i128,
    /// The least room that was left at the changes in between.
    pub(super) least_room: i128,
    /// What was given back until the last change.
    pub(super) lowered: i128,
    /// What had been given back at the last change, as `TokenBucket::given` has it.
    pub(super) given: u64,
}

impl Writer {
    pub(super) fn new(quota: Quota, burst: i128) -> Self {
        Self {
            quota,
            made_with: quota,
            changes: Vec::new(),
            given: Given::default(),
            era: 0,
            ahead: Ahead::NOTHING,
            withheld: Withheld::new(burst),
        }
    }

    fn remember(&mut self, change: Change) {
        self.given.clear();
        self.era += 1;
        if self.changes.len() == HISTORY {
            self.changes.remove(0);
        }
        self.changes.push(change);
    }

    /// Nothing when the changes since then are not all remembered, or one was a reset.
    pub(super) fn since(&self, ticket: &BucketTicket, now: u64) -> Option<Past> {
        let taken = Word(ticket.word);
        let first = self
            .changes
            .iter()
            .position(|change| change.version == taken.version())?;
        let mut past = Past {
            position: i128::from(taken.position()) << (FINE - self.changes[first].before.scale),
            least_room: i128::MAX,
            lowered: 0,
            given: ticket.given,
        };
        let mut last = taken.version();
        for change in &self.changes[first..] {
            let end = fine(change.end, &change.before);
            past.least_room = past
                .least_room
                .min(past.position - end + fine(change.before.burst, &change.before));
            past.position = fine(change.start, &change.after) + past.position - end - change.raised?;
            past.lowered += fine(given_between(past.given, change.given), &change.before);
            past.given = change.given_after;
            last = change.version;
        }
        (Word::next_version(last) == now).then_some(past)
    }
}
