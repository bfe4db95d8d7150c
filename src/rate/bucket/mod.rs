//! The bucket of tokens: one position on an [axis](axis) that goes on through every change of quota.
//!
//! Time moves the axis `V` forward at the quota's rate. One atomic word holds a position `P`, and the level of the bucket
//! is `min(V - P, burst)`. To take `n` is to move `P` to `V - level + n`, if `n <= level`: the generic cell rate
//! algorithm (ITU-T I.371), turned from instants to tokens. So the rate enters by one multiply, and all else is whole numbers.
//!
//! A change of quota changes the slope of `V` and the burst, but not `V`. So positions and tickets keep their meaning, and
//! an admission by the old slope that is under way counts as before the change. Where the unit has to change, the axis jumps
//! further than any burst and debt, so that no exchange under way succeeds, and older tickets are told apart.
//!
//! # Refunds
//! A refund lowers `P`, under the writer's lock. All of a ticket comes back if it is the newest take that still stands.
//! Otherwise let `d` be what a bucket without the ticket would hold more. `d` begins with what the ticket took, and shrinks
//! only where that bucket overflows: by no more than what was refilled since, and not at all while the room before the
//! take covers what was refilled and given back since. Both are lower bounds, and a refund gives back the larger.
//!
//! The word is read before the clock, and the exchange fails if the word has moved meanwhile: a taker may have found the
//! bucket full just then.

mod axis;
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests;

pub(crate) use axis::Axis;

use super::inherit::Inherit;
use super::meter::{Forecast, Meter, Standing};
use super::quota::Quota;
use crate::core::ticket::Ticket;
use crate::sync::shim::atomic::{AtomicU64, Ordering, fence};
use crate::sync::shim::{Mutex, MutexGuard};
use crate::time::{Clock, Instant};

/// The distance of the axes before and after a change of unit: more than any burst and debt.
const JUMP: u64 = 1 << 56;

/// Set in the tokens of a ticket that was settled upwards: it is never the newest, since a part of it lies below later takes.
const RAISED: u64 = 1 << 63;

/// The memory of an admission: its tokens, the cumulative position after it, and the axis when it was taken.
///
/// ```
/// # use tollgate::{BucketTicket, Ticket};
/// // Three words of each admission in a policy.
/// assert_eq!(BucketTicket::WORDS, 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTicket {
    /// The tokens that are charged, and [`RAISED`].
    tokens: u64,
    /// The position after the take, plus all that had been given back before it.
    cumulative: u64,
    axis: u64,
}

impl Ticket for BucketTicket {
    const WORDS: usize = 3;
    fn write(&self, words: &mut [u64]) {
        words[..3].copy_from_slice(&[self.tokens, self.cumulative, self.axis]);
    }
    fn read(words: &[u64]) -> Self {
        Self {
            tokens: words[0],
            cumulative: words[1],
            axis: words[2],
        }
    }
}

/// The quota in force, and what only the holder of the lock touches.
#[derive(Debug)]
struct Writer {
    quota: Quota,
    /// The quota has been changed.
    is_changed: bool,
    /// Tickets from before this position of the axis give nothing back.
    alive_from: u64,
}

/// The meter of a [`TokenBucket`](crate::TokenBucket), and of a [`LeakyBucket`](crate::LeakyBucket): tokens, and their quota.
#[derive(Debug)]
pub struct Bucket<const LEAKY: bool> {
    word: AtomicU64,
    published: Published,
    /// All units that were ever given back, but for those that left no trace.
    refunded: AtomicU64,
    /// Refunds and changes of quota, one at a time.
    writer: Mutex<Writer>,
}

/// What was taken regardless of what was there.
struct Charge {
    units: u64,
    tokens: u64,
    /// The position after it, and the axis then.
    after: u64,
    now: u64,
}

/// The bucket at an instant.
#[derive(Clone, Copy)]
struct Seen {
    word: u64,
    at: u64,
    axis: Axis,
}

impl Seen {
    fn level(&self) -> i64 {
        self.axis.level(self.word, self.at)
    }

    /// When `n` tokens are there behind `ahead` others.
    fn forecast(&self, n: u64, ahead: u64) -> Forecast {
        let (need, ahead) = (self.axis.units(n), self.axis.units(ahead));
        let (level, behind) = (self.level(), need.saturating_add(ahead));
        if need > self.axis.burst {
            return Forecast::Never;
        }
        // Nothing is there also in debt.
        if behind == 0 || behind as i64 <= level {
            return Forecast::Now;
        }
        let target = self.at.wrapping_sub(level as u64).wrapping_add(behind);
        self.axis.reaches(target).map_or(Forecast::Spent, Forecast::At)
    }
}

impl<const LEAKY: bool> Bucket<LEAKY> {
    /// A full bucket.
    pub(super) fn new(quota: Quota, clock: &Clock) -> Self {
        let axis = Axis::new(&quota, clock, clock.now());
        let published = Published::default();
        published.begin();
        published.end(&axis);
        Self {
            word: AtomicU64::new(axis.full(axis.origin)),
            published,
            refunded: AtomicU64::new(0),
            writer: Mutex::new(Writer {
                quota,
                is_changed: false,
                alive_from: axis.origin,
            }),
        }
    }

    pub(super) fn quota(&self) -> Quota {
        self.writer.lock().quota
    }

    /// Takes `n` tokens, or returns `None` where they are not there, or where it is worth another look.
    #[inline(always)] // row: token bucket admit
    fn take_once(&self, n: u64, now: Instant) -> Option<BucketTicket> {
        let published = &self.published;
        // Acquire: reads the fields as they were stored before this version. Pairs with `Published::end`.
        let meta = published.meta.load(Ordering::Acquire);
        let axis = published.axis(meta);
        // Acquire, and before the word: a refund that this take does not see counts as a later one. Pairs with `refund`.
        let refunded = self.refunded.load(Ordering::Acquire);
        // Relaxed: the exchange below acquires.
        let word = self.word.load(Ordering::Relaxed);
        if !published.is_still(meta) {
            return None;
        }
        let at = axis.at(now)?;
        let level = axis.level(word, at);
        let need = axis.units(n);
        let after = at.wrapping_sub(level as u64).wrapping_add(need);
        // Nothing is there also in debt.
        if need as i64 > level.max(0) {
            return None;
        }
        // Release: a thread that reads this word, and then the clock, is not behind `now`. Pairs with the loads of the
        // word in `refund` and `charge`. Acquire: a later refund of this ticket finds what this thread has found.
        let taken = self
            .word
            .compare_exchange_weak(word, after, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok().then(|| BucketTicket {
            tokens: n,
            cumulative: after.wrapping_add(refunded),
            axis: at,
        })
    }

    /// `None` where it is worth another try.
    #[cold]
    #[inline(never)] // row: token bucket admit
    fn why_not(&self, n: u64, now: Instant) -> Option<Forecast> {
        Some(self.see(now).forecast(n, 0)).filter(|forecast| *forecast != Forecast::Now)
    }

    /// Reads the bucket at `now`.
    fn see(&self, now: Instant) -> Seen {
        match self.try_see(now) {
            Some(seen) => seen,
            None => self.see_slowly(now),
        }
    }

    /// Reads word and axis of one version. `None` while they change, and beyond the life of the axis.
    fn try_see(&self, now: Instant) -> Option<Seen> {
        // Acquire: as in `take_once`.
        let meta = self.published.meta.load(Ordering::Acquire);
        let axis = self.published.axis(meta);
        let word = self.word.load(Ordering::Acquire);
        if !self.published.is_still(meta) {
            return None;
        }
        let at = axis.at(now)?;
        Some(Seen { word, at, axis })
    }

    #[cold]
    fn see_slowly(&self, now: Instant) -> Seen {
        loop {
            {
                let mut writer = self.writer.lock();
                let axis = self.axis(&writer);
                if axis.at(now).is_none() {
                    self.publish(&mut writer, [&axis, &axis.go_on(now)], Inherit::AsIs, true, now);
                }
            }
            if let Some(seen) = self.try_see(now) {
                return seen;
            }
        }
    }

    /// The axis in force.
    fn axis(&self, _: &MutexGuard<'_, Writer>) -> Axis {
        // Relaxed: written under the lock that is held.
        self.published.axis(self.published.meta.load(Ordering::Relaxed))
    }

    /// Changes the quota; `inherit` says what becomes of the tokens that are there.
    pub(super) fn set_quota(&self, quota: Quota, inherit: Inherit, clock: &Clock) {
        let mut writer = self.writer.lock();
        writer.is_changed |= writer.quota != quota;
        self.change(&mut writer, quota, inherit, clock);
    }

    /// Changes slope and burst from now on, where the axis stands.
    fn change(&self, writer: &mut MutexGuard<'_, Writer>, quota: Quota, inherit: Inherit, clock: &Clock) {
        let (old, now) = (self.axis(writer), clock.now());
        writer.quota = quota;
        let keeps_unit = old.suits(&quota);
        let keeps_tickets = keeps_unit && inherit == Inherit::AsIs;
        let scale = if keeps_unit {
            old.scale
        } else {
            Axis::best_scale(&quota)
        };
        let burst = old.change(&quota, clock, now, scale, 0).burst;
        let jump = match keeps_unit {
            // What a smaller burst may have cut off counts, for earlier tickets, as refilled.
            true if keeps_tickets => old.burst.saturating_sub(burst),
            true => 1,
            false => JUMP,
        };
        let new = old.change(&quota, clock, now, scale, jump);
        self.publish(writer, [&old, &new], inherit, keeps_tickets, now);
    }

    /// Moves the bucket from one axis to the other, as of `now`.
    fn publish(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        [old, new]: [&Axis; 2],
        inherit: Inherit,
        keeps_tickets: bool,
        now: Instant,
    ) {
        let (before, after) = (old.at_any(now), new.at_any(now));
        self.published.begin();
        // Relaxed: the exchange acquires.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let level = inherited(old.level(word, before), old, new, inherit);
            let moved = after.wrapping_sub(level as u64);
            // Release: a reader of this word finds the version odd, or later. Pairs with the fence in `is_still`.
            match self
                .word
                .compare_exchange(word, moved, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(seen) => word = seen,
            }
        }
        if keeps_tickets {
            // Room that has not been there throughout counts, for earlier tickets, as given back. Release: as in `refund`.
            let grown = new.burst.wrapping_sub(old.burst);
            self.refunded.fetch_add(grown, Ordering::Release);
        } else {
            writer.alive_from = after;
        }
        self.published.end(new);
    }

    /// Gives back `tokens` of `ticket`: all of them if it is the newest, otherwise as many as surely have room.
    fn refund(&self, ticket: &mut BucketTicket, tokens: u64, clock: &Clock) {
        let writer = self.writer.lock();
        let axis = self.axis(&writer);
        let units = axis.units(tokens);
        ticket.tokens -= tokens;
        let may_be_newest = ticket.tokens & RAISED == 0 && writer.is_alive(ticket);
        // Relaxed: written under the lock that is held.
        let refunded = self.refunded.load(Ordering::Relaxed);
        loop {
            // Acquire: the clock is read after the readings of all takers that this word includes. Pairs with `take_once`.
            let word = self.word.load(Ordering::Acquire);
            let is_newest = may_be_newest && word.wrapping_add(refunded) == ticket.cumulative;
            let back = match is_newest {
                true => units,
                false => self.refund_bound(&writer, axis.at_any(clock.now()), &axis, ticket, units),
            };
            let lowered = word.wrapping_sub(back);
            // Acquire: as above, for the next. Release: a taker from the lowered position sees all refunds before it.
            if self
                .word
                .compare_exchange(word, lowered, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            if is_newest {
                // As if it had taken less from the start: no trace.
                ticket.cumulative = ticket.cumulative.wrapping_sub(back);
            } else {
                // The rest counts, from here on, as if it had never taken more. What did not come back was no room either.
                ticket.cumulative = ticket.cumulative.wrapping_sub(units - back);
                // Release: a reader of this count also sees the lowered word. Pairs with `take_once`.
                self.refunded.store(refunded.wrapping_add(back), Ordering::Release);
            }
            return;
        }
    }

    /// How many of `units` a bucket without `ticket` would surely hold more when the axis is at `now`.
    fn refund_bound(&self, writer: &Writer, now: u64, axis: &Axis, ticket: &BucketTicket, units: u64) -> u64 {
        if !writer.is_alive(ticket) {
            return 0;
        }
        let refilled = now.wrapping_sub(ticket.axis);
        // Relaxed: written under the lock that is held.
        let refunded = self.refunded.load(Ordering::Relaxed);
        let full = now.wrapping_sub(axis.burst);
        let room = ticket.cumulative.wrapping_sub(refunded).wrapping_sub(full) as i64;
        units.saturating_sub(refilled).max(room.max(0) as u64).min(units)
    }

    /// Takes up to `tokens`, in debt if need be.
    fn charge(&self, writer: &MutexGuard<'_, Writer>, tokens: u64, clock: &Clock) -> Charge {
        let axis = self.axis(writer);
        let most = axis.max_debt(&writer.quota);
        loop {
            // Acquire: as in `refund`.
            let word = self.word.load(Ordering::Acquire);
            let now = axis.at_any(clock.now());
            let level = axis.level(word, now);
            let whole = |units: u64| units >> axis.scale << axis.scale;
            let units = axis.units(tokens).min(whole(level.saturating_add(most).max(0) as u64));
            let after = now.wrapping_sub(level as u64).wrapping_add(units);
            // As in `take_once`.
            if self
                .word
                .compare_exchange(word, after, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                let tokens = if axis.is_unlimited() {
                    tokens
                } else {
                    units >> axis.scale
                };
                return Charge {
                    units,
                    tokens,
                    after,
                    now,
                };
            }
        }
    }

    /// Takes `more` for `ticket`, in debt if need be. From here on the ticket counts as one that took, now, what it would give
    /// back and the rest; it is never the newest.
    fn take_more(&self, ticket: &mut BucketTicket, more: u64, clock: &Clock) {
        let writer = self.writer.lock();
        let charge = self.charge(&writer, more, clock);
        let axis = self.axis(&writer);
        let tokens = ticket.tokens().saturating_add(charge.tokens) & !RAISED;
        // Relaxed: written under the lock that is held.
        let refunded = self.refunded.load(Ordering::Relaxed);
        let (units, full) = (axis.units(ticket.tokens()), charge.now.wrapping_sub(axis.burst));
        // Both bounds of `refund_bound` go on, each by itself: what one of them has lost, it has lost for good.
        let (refilled, room) = match writer.is_alive(ticket) {
            true => (
                charge.now.wrapping_sub(ticket.axis).min(units),
                (ticket.cumulative.wrapping_sub(refunded).wrapping_sub(full) as i64).max(0) as u64,
            ),
            false => (units, 0),
        };
        let room = charge.after.wrapping_sub(full).min(room.saturating_add(charge.units));
        *ticket = BucketTicket {
            tokens: tokens | RAISED,
            cumulative: full.wrapping_add(room).wrapping_add(refunded),
            axis: charge.now.wrapping_sub(refilled),
        };
    }
}

impl<const LEAKY: bool> Meter for Bucket<LEAKY> {
    type Ticket = BucketTicket;
    const LEG: &'static str = if LEAKY { "leaky_bucket" } else { "token_bucket" };

    #[inline(always)] // row: token bucket admit
    fn take(&self, n: u64, now: Instant) -> Result<BucketTicket, Forecast> {
        loop {
            if let Some(ticket) = self.take_once(n, now) {
                return Ok(ticket);
            }
            // A success never passes through the memory of a refusal: the row of a bucket's admission needs it.
            if let Some(forecast) = self.why_not(n, now) {
                return Err(forecast);
            }
        }
    }

    fn forecast(&self, n: u64, ahead: u64, now: Instant) -> Forecast {
        self.see(now).forecast(n, ahead)
    }

    fn settle(&self, ticket: &mut BucketTicket, actual: u64, clock: &Clock) -> bool {
        match actual.checked_sub(ticket.tokens()) {
            Some(0) => false,
            Some(more) => {
                self.take_more(ticket, more, clock);
                false
            }
            None => {
                self.refund(ticket, ticket.tokens() - actual, clock);
                true
            }
        }
    }

    fn force(&self, n: u64, clock: &Clock) {
        self.charge(&self.writer.lock(), n, clock);
    }

    fn clear(&self, clock: &Clock) {
        let mut writer = self.writer.lock();
        let quota = writer.quota;
        self.change(&mut writer, quota, Inherit::Reset, clock);
    }

    fn standing(&self, now: Instant) -> Standing {
        let (seen, writer) = (self.see(now), self.writer.lock());
        let (axis, level) = (&seen.axis, seen.level());
        let full = seen.at.wrapping_sub(level as u64).wrapping_add(axis.whole_burst());
        Standing {
            limit: writer.quota.burst_size(),
            window: writer.quota.window(),
            free: axis.tokens(level),
            debt: axis.owed(level),
            fresh_at: axis.reaches(full).map(|at| at.max(now)),
            is_window: false,
            is_changed: writer.is_changed,
        }
    }
}

impl BucketTicket {
    /// The tokens that are charged for it.
    pub fn tokens(&self) -> u64 {
        self.tokens & !RAISED
    }
}

impl Writer {
    fn is_alive(&self, ticket: &BucketTicket) -> bool {
        ticket.axis.wrapping_sub(self.alive_from) as i64 >= 0
    }
}

/// The level after a change of quota, by the new axis.
fn inherited(level: i64, old: &Axis, new: &Axis, inherit: Inherit) -> i64 {
    let held = i128::from(level);
    let full = i128::from(new.whole_burst());
    let level = match inherit {
        _ if inherit == Inherit::Reset || old.is_unlimited() || new.is_unlimited() => full,
        Inherit::Proportional if level > 0 => held * full / i128::from(old.whole_burst().max(1)),
        _ if new.scale >= old.scale => held << (new.scale - old.scale),
        _ => held >> (old.scale - new.scale),
    };
    level.clamp(-i128::from(axis::MAX_DEBT), new.burst.into()) as i64
}

/// An axis that is read without a lock while one writer replaces it. `meta` holds a version, odd while the axis is
/// replaced, the shift and the scale.
#[derive(Debug, Default)]
struct Published {
    meta: AtomicU64,
    epoch: AtomicU64,
    origin: AtomicU64,
    mul: AtomicU64,
    burst: AtomicU64,
    life: AtomicU64,
    step: AtomicU64,
}

const VERSION: u64 = 1 << 16;

impl Published {
    /// The axis, if [`is_still`](Self::is_still) says so afterwards.
    #[inline(always)] // row: token bucket admit
    fn axis(&self, meta: u64) -> Axis {
        // Relaxed: the load of `meta` before them, and the fence after them, order them.
        Axis {
            epoch: Instant::from_ticks(self.epoch.load(Ordering::Relaxed)),
            origin: self.origin.load(Ordering::Relaxed),
            mul: self.mul.load(Ordering::Relaxed),
            shift: ((meta >> 8) & 63) as u32,
            scale: (meta & 63) as u32,
            step: self.step.load(Ordering::Relaxed),
            burst: self.burst.load(Ordering::Relaxed),
            life: self.life.load(Ordering::Relaxed),
        }
    }

    /// True if all that was read since `meta` belongs to its version.
    #[inline(always)] // row: token bucket admit
    fn is_still(&self, meta: u64) -> bool {
        // Acquire: a reader that has seen a field, or the word, as it was stored after `begin` sees the odd version here.
        // Pairs with the fence in `begin`.
        fence(Ordering::Acquire);
        meta & VERSION == 0 && self.meta.load(Ordering::Relaxed) == meta
    }

    /// From here on readers come to the writer's lock. Under it.
    fn begin(&self) {
        // Relaxed: one writer at a time, and the fence orders it.
        self.meta.fetch_add(VERSION, Ordering::Relaxed);
        // Release: pairs with the fence in `is_still`.
        fence(Ordering::Release);
    }

    /// Publishes `axis` under the next version. Under the writer's lock.
    fn end(&self, axis: &Axis) {
        self.epoch.store(axis.epoch.ticks(), Ordering::Relaxed);
        self.origin.store(axis.origin, Ordering::Relaxed);
        self.mul.store(axis.mul, Ordering::Relaxed);
        self.step.store(axis.step, Ordering::Relaxed);
        self.burst.store(axis.burst, Ordering::Relaxed);
        self.life.store(axis.life, Ordering::Relaxed);
        let version = self.meta.load(Ordering::Relaxed) / VERSION + 1;
        let meta = (version * VERSION) | (u64::from(axis.shift) << 8) | u64::from(axis.scale);
        // Release: a reader of this version reads the fields as stored above. Pairs with the acquiring loads of `meta`.
        self.meta.store(meta, Ordering::Release);
    }
}
