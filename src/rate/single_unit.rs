//! A word beside the lock, so that the usual admission of one unit needs no lock.
//!
//! Let one unit be taken while nothing else counts. From some instant on it does not count either, so the whole state
//! of the meter is that instant, and the word holds it. Then the next take of one unit is one compare-exchange, from
//! that instant to the one until which the new unit counts. A refusal, where no other unit fits beside it, is one load.
//! A refund is a compare-exchange too. If nothing counts at all, the word holds the latest instant that was seen.
//!
//! | the word | allowed transitions |
//! |---|---|
//! | an instant | at that instant or later: take one unit, which moves it on. For the unit that it names: refund |
//! | a free bit, and an instant | take one unit, at that instant or later |
//! | [`CLOSED`] | none, except by the lock holder |
//!
//! Taking the lock closes the word and brings the meter's state up to it. Releasing the lock opens the word again, if a
//! word can say the state. So under the lock the meter has all of the state.
//!
//! A refusal through the word leaves no trace, not even of its instant: a later admission by an earlier reading counts
//! from the latest instant of any other operation. The same holds for a look beside a refund.
//!
//! Between two looks at the state, any number of takes may have gone through the word. Each began when the one before
//! had ceased to count, or was refunded. So all but the latest have nothing left to refund and need no name; the latest
//! is named by its instant. No other take that may still be refunded has the same name: a take under the lock gets into
//! the word only if it counts longer than all before it.
//!
//! An instant also belongs to one set of times: once the word was opened with other times, or after a reset, it holds
//! later instants than all before. So a compare-exchange that finds the word it read has also read the times that
//! belong to it, and refunds no other unit.

use super::meter::Meter;
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// The word while it says nothing.
pub(super) const CLOSED: u64 = u64::MAX;

/// The bit of a word that says that nothing counts. The other bits are the latest instant that was seen.
const FREE: u64 = 1 << 63;

/// The bit that tells the mark of a take through the word from the number of a take under the lock.
const BY_WORD: u64 = 1 << 63;

/// The mark, or the first word of it, of a take that moved the word on to `until`.
#[inline(always)]
pub(super) fn mark_of(until: u64) -> u64 {
    until | BY_WORD
}

/// The instant until which a take through the word counts, by its mark. `None` for a take under the lock.
#[inline(always)]
pub(super) fn until_of(mark: u64) -> Option<u64> {
    (mark & BY_WORD != 0).then_some(mark & !BY_WORD)
}

/// The word when nothing counts, and `now` is the latest instant that was seen.
#[inline(always)]
pub(super) fn free_since(now: u64) -> u64 {
    now | FREE
}

/// The latest instant, by a word that says that nothing counts.
#[inline(always)]
pub(super) fn since_of(word: u64) -> Option<u64> {
    (word & FREE != 0).then_some(word & !FREE)
}

/// True when an instant may stand in the word, with or without a bit.
#[inline(always)]
pub(super) fn may_be_word(instant: u64) -> bool {
    instant < CLOSED & !FREE
}

/// How long a unit counts that is taken alone, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// Until the unit counts no more.
    pub(super) lasts: u64,
    /// The part of that, at the end, in which another unit fits beside it; all of time if one fits at once.
    pub(super) rest: u64,
}

impl Times {
    /// A single unit never goes through the word.
    pub(super) const NEVER: Self = Self {
        lasts: u64::MAX,
        rest: u64::MAX,
    };
}

/// The instant before which no other unit fits beside one that counts until `until`. The start of time if one fits at
/// once.
#[inline(always)]
pub(super) fn busy_until(until: u64, rest: u64) -> u64 {
    until.saturating_sub(rest)
}

/// The take that a mark belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known<M> {
    /// This take under the lock.
    As(M),
    /// A take of which nothing counts any more.
    Past,
    /// A take from before the last reset.
    Cleared,
}

/// The pure side of the word: the state as a word, and the take that it names. `M` is the mark of a take under the
/// lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SingleUnit<M> {
    /// The state as a word; [`CLOSED`] if it is more than one unit.
    word: u64,
    /// The latest instant until which a take with a name counts, or would have counted.
    latest: u64,
    /// The value of `latest` at the last reset.
    cleared: u64,
    /// The latest take through the word.
    named: (u64, M),
}

impl<M: Copy> SingleUnit<M> {
    /// Nothing has been taken. `mark` belongs to no take.
    pub(super) fn new(mark: M) -> Self {
        Self {
            word: CLOSED,
            latest: 0,
            cleared: 0,
            named: (0, mark),
        }
    }

    /// One unit was taken under the lock, alone, and counts until `until`. After a reset, or a change to a faster rate,
    /// that may not be later than for the takes before. Until it is, the word stays closed, and every caller takes the
    /// lock.
    pub(super) fn begin(&mut self, until: u64) {
        let unheard_of = until > self.latest;
        self.word = CLOSED;
        if unheard_of && may_be_word(until) {
            (self.word, self.latest) = (until, until);
        }
    }

    /// The state is more than a word.
    #[inline]
    pub(super) fn end(&mut self) {
        self.word = CLOSED;
    }

    /// Resets: nothing taken so far is refunded any more.
    pub(super) fn clear(&mut self) {
        self.end();
        self.cleared = self.latest;
    }

    /// True if the word is still as it was opened.
    #[inline]
    pub(super) fn is(&self, word: u64) -> bool {
        self.word == word
    }

    /// The latest take went through the word. Under the lock it would have this mark.
    pub(super) fn went(&mut self, until: u64, mark: M) {
        (self.word, self.latest, self.named) = (until, until, (until, mark));
    }

    /// Nothing counts, by the word: the takes through it, the last at `since`, were refunded.
    pub(super) fn is_free(&mut self, since: u64, times: Times) {
        self.word = free_since(since);
        self.latest = self.latest.max(since.saturating_add(times.lasts));
    }

    /// The word to open with, if `now` is the latest instant that was seen. [`CLOSED`] also if another unit fits by
    /// then beside one that counts: the word would refuse it by an earlier reading.
    #[inline(always)]
    pub(super) fn open(&mut self, now: u64, times: Times) -> u64 {
        match self.word {
            CLOSED => CLOSED,
            word => self.open_with(word, now, times),
        }
    }

    fn open_with(&mut self, word: u64, now: u64, times: Times) -> u64 {
        let is_free = word <= now || since_of(word).is_some();
        if is_free {
            // A caller with an earlier reading counts from the latest.
            self.word = if may_be_word(now) { free_since(now) } else { CLOSED };
            return self.word;
        }
        match busy_until(word, times.rest) {
            1.. if now >= busy_until(word, times.rest) => CLOSED,
            _ => word,
        }
    }

    /// Resolves a mark by its first word; `None` for a take under the lock.
    pub(super) fn find(&self, first: u64) -> Option<Known<M>> {
        let until = until_of(first)?;
        Some(match until {
            _ if until <= self.cleared => Known::Cleared,
            _ if until == self.named.0 => Known::As(self.named.1),
            _ => Known::Past,
        })
    }
}

/// A meter behind a lock, with the word beside it.
pub(super) struct MeterLock<M> {
    word: AtomicU64,
    lasts: AtomicU64,
    rest: AtomicU64,
    /// The latest instant that was seen when the word was opened.
    seen: AtomicU64,
    meter: Mutex<M>,
}

/// The result of an attempt to take one unit.
pub(super) enum Attempt {
    /// Taken: it counts until this instant.
    Until(u64),
    /// Refused: there is no room before this instant.
    Not(u64),
    /// The caller has to take the lock.
    ByLock,
}

/// The guard of the lock. The word is closed meanwhile.
pub(super) struct MeterGuard<'a, M: Meter> {
    lock: &'a MeterLock<M>,
    meter: MutexGuard<'a, M>,
}

impl<M: Meter> MeterLock<M> {
    pub(super) fn new(meter: M) -> Self {
        Self {
            word: AtomicU64::new(CLOSED),
            lasts: AtomicU64::new(0),
            rest: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            meter: Mutex::new(meter),
        }
    }

    /// Takes one unit at `now` through the word, or finds that none fits.
    #[inline(always)]
    pub(super) fn take_one(&self, now: u64) -> Attempt {
        // Acquire: a thread that sees an opened word sees its times, or later ones. Pairs with `MeterGuard::drop`, also
        // through the exchanges of others.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let mut from = now;
            if now < word {
                let Some(since) = since_of(word) else {
                    return self.refuse_one(now, word);
                };
                // `CLOSED` is the end of time, and passes no check below.
                from = now.max(since);
            }
            // Acquire: a thread that sees times of a later opening finds that the word has changed. Pairs with
            // `MeterGuard::drop`.
            let until = from.saturating_add(self.lasts.load(Ordering::Acquire));
            if !may_be_word(until) {
                return Attempt::ByLock;
            }
            // Relaxed on success: only the word is handed on. Acquire on failure: as the load above.
            let exchanged = self
                .word
                .compare_exchange(word, until, Ordering::Relaxed, Ordering::Acquire);
            match exchanged {
                Ok(_) => return Attempt::Until(until),
                Err(seen) => word = seen,
            }
        }
    }

    /// The rest may belong to a later opening than the word. That began with another take, beside which none would have
    /// fitted at `now` either.
    #[inline(always)]
    fn refuse_one(&self, now: u64, word: u64) -> Attempt {
        // Acquire: as the times in `take_one`.
        let busy_until = busy_until(word, self.rest.load(Ordering::Acquire));
        if now < busy_until {
            Attempt::Not(busy_until)
        } else {
            Attempt::ByLock
        }
    }

    /// Refunds the unit that counts until `until`, as of `now`. False if that has to be done under the lock.
    #[inline(always)]
    pub(super) fn give_back_one(&self, until: u64, now: u64) -> bool {
        // Acquire: as the times in `take_one`.
        let taken = until.saturating_sub(self.lasts.load(Ordering::Acquire));
        let latest = now.max(taken).max(self.seen.load(Ordering::Acquire));
        // Relaxed, all of them: only the word is handed on.
        may_be_word(latest)
            && self.word.load(Ordering::Relaxed) == until
            && self
                .word
                .compare_exchange(until, free_since(latest), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> MeterGuard<'_, M> {
        let mut meter = self.meter.lock();
        // Relaxed: the word is opened only under the lock that we hold.
        if M::BY_WORD.is_some() && self.word.load(Ordering::Relaxed) != CLOSED {
            // Relaxed: an exchange finds the latest. A thread that sees times stored after it finds the word closed;
            // see `MeterGuard::drop`.
            meter.went_by_word(self.word.swap(CLOSED, Ordering::Relaxed));
        }
        MeterGuard { lock: self, meter }
    }
}

impl<M: Meter> Deref for MeterGuard<'_, M> {
    type Target = M;
    #[inline(always)]
    fn deref(&self) -> &M {
        &self.meter
    }
}

impl<M: Meter> DerefMut for MeterGuard<'_, M> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut M {
        &mut self.meter
    }
}

impl<M: Meter> Drop for MeterGuard<'_, M> {
    /// Opens the word, if a word can say the state.
    #[inline(always)]
    fn drop(&mut self) {
        let word = self.meter.open();
        if word != CLOSED {
            let times = self.meter.times();
            // Release: a thread that sees these times sees that the word was closed. Pairs with `take_one`.
            self.lock.lasts.store(times.lasts, Ordering::Release);
            self.lock.rest.store(times.rest, Ordering::Release);
            self.lock.seen.store(self.meter.now(), Ordering::Release);
            // Release: a thread that sees this word sees its times. Pairs with `take_one`.
            self.lock.word.store(word, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::{Inputs, holds};
    use crate::rate::drain::Drain;
    use crate::rate::leaky_bucket::LeakyMeter;
    use crate::rate::meter_limiter::MeterLimiter;
    use crate::rate::warmup::{Pace, Shape, WarmupMeter};
    use crate::time::{Instant, ManualClock};

    /// Compares a meter behind a lock with a word to a bare meter, by takes, refunds, corrections, looks and other operations of the meter
    /// at any time, also by stale readings.
    fn beside<M: Meter>(
        inputs: &mut Inputs,
        make: impl Fn(u64) -> M,
        own: impl Fn(&mut M, u64) -> Option<(u64, M::Mark)>,
    ) {
        let start = inputs.one_of(&[0, 1_000, (1 << 63) - 200, u64::MAX - 500]);
        let clock = ManualClock::new();
        let (limiter, mut bare) = (MeterLimiter::new("", &clock, |_| make(start)), make(start));
        let (mut now, mut held) = (start, Vec::new());
        if inputs.below(2) == 1 {
            // Some begin with a unit of which nothing counts any more.
            let at = Instant::from_ticks(now);
            if let Ok(mark) = limiter.take(1, at) {
                held.push((1, mark, bare.take(1)));
                now = bare.fresh_at().unwrap_or(now);
            }
        }
        while inputs.goes_on() {
            now = match inputs.number(40, 4) {
                4 => now.saturating_sub(inputs.number(9, 0)),
                ticks => now.saturating_add(ticks),
            };
            let at = Instant::from_ticks(now);
            bare.advance(now);
            let step = inputs.below(12);
            let which = inputs.below(held.len().max(1) as u64) as usize;
            match step {
                0..6 => {
                    // Mostly single units.
                    let n = [1, 1, 1, 1, 2, 1][step as usize];
                    let taken = limiter.take(n, at);
                    assert_eq!(taken.is_ok(), bare.fits(n));
                    match taken {
                        Ok(mark) => {
                            held.push((n, mark, bare.take(n)));
                        }
                        // Through the word, its instant would stay unseen.
                        Err(_) => drop(limiter.at(at)),
                    }
                }
                6 | 7 if !held.is_empty() => {
                    let (units, mark, twin) = held.remove(which);
                    limiter.cancel(units, &mark, at);
                    bare.restore(&twin, units);
                }
                8 if !held.is_empty() => {
                    let actual = inputs.below(3);
                    let (units, mark, twin) = &mut held[which];
                    if *units != actual {
                        limiter.at(at).correct(mark, *units, actual);
                        bare.correct(twin, *units, actual);
                        *units = actual;
                    }
                }
                11 => {
                    // Also beyond what fits.
                    let n = 1 + inputs.below(2);
                    held.push((n, limiter.at(at).take(n), bare.take(n)));
                }
                9 => {
                    limiter.at(at).clear();
                    bare.clear();
                }
                10 => {
                    let what = inputs.below(8);
                    let done = own(&mut limiter.at(at), what);
                    if let (Some((n, mark)), Some((_, twin))) = (done, own(&mut bare, what)) {
                        held.push((n, mark, twin));
                    }
                }
                _ => drop(limiter.at(at)),
            }
            let says = |meter: &M| (meter.free(), [1, 2, 5].map(|n| meter.ready(n, 0)), meter.fresh_at());
            // Only sometimes, so that takes through the word often follow each other.
            if step >= 4 {
                assert_eq!(says(&limiter.at(at)), says(&bare), "after {step} at {now}");
            }
        }
    }

    /// Where one unit at a time counts for `lasts`, each cancel gives back its own unit, if that still counts, and no other; after a
    /// new start none.
    fn one_at_a_time<M: Meter>(inputs: &mut Inputs, lasts: u64, meter: impl FnOnce() -> M) {
        let clock = ManualClock::new();
        let limiter = MeterLimiter::new("", &clock, |_| meter());
        // The units that were taken, by number; the one that counts, and until when.
        let (mut now, mut marks, mut counts) = (0, Vec::new(), None::<(usize, u64)>);
        let begins = inputs.below(2);
        for round in 0.. {
            // Some begin with a unit that was taken, and does not count any more.
            let step = match round {
                0 | 1 if begins == 1 => [1, 4][round],
                _ if !inputs.goes_on() => break,
                _ => inputs.below(6),
            };
            let at = Instant::from_ticks(now);
            match step {
                0 => now += 1 + inputs.number(2 * lasts, 0),
                4 => now += lasts,
                1 | 5 => {
                    let taken = limiter.take(1, at);
                    let busy = counts.filter(|(_, until)| *until > now);
                    assert_eq!(taken.is_ok(), busy.is_none(), "at {now}");
                    if let Ok(mark) = taken {
                        counts = Some((marks.len(), now + lasts));
                        marks.push(Some(mark));
                    }
                }
                2 if !marks.is_empty() => {
                    let which = marks.len() - 1 - inputs.below(marks.len().min(3) as u64) as usize;
                    if let Some(mark) = marks[which].take() {
                        limiter.cancel(1, &mark, at);
                        counts = counts.filter(|(number, _)| *number != which);
                    }
                }
                2 => {}
                _ => {
                    limiter.at(at).clear();
                    counts = None;
                }
            }
        }
        let is_free = counts.is_none_or(|(_, until)| until <= now);
        assert_eq!(limiter.at(Instant::from_ticks(now)).free(), u64::from(is_free));
    }

    #[test]
    fn a_cancel_gives_back_its_own_unit_alone() {
        holds([5, 6], |inputs| {
            let lasts = 1 + inputs.number(30, 1);
            if inputs.below(2) == 0 {
                let drain = Drain::new(1, lasts, 1 << 40);
                return one_at_a_time(inputs, lasts, || LeakyMeter::new(0, Some(drain), 1, 1));
            }
            let interval = u128::from(lasts) << 32;
            let shape = Shape::new((1, lasts), 3 * lasts, 1, interval, 3 * lasts).expect("a shape");
            one_at_a_time(inputs, lasts, || WarmupMeter::new(0, Pace::Shaped(shape), 1));
        });
    }

    #[test]
    fn a_leaky_bucket_is_the_same_with_a_word() {
        holds([2, 3], |inputs| {
            let (count, nanos, brim) = (1 + inputs.number(2, 0), 3 + inputs.number(16, 0), inputs.number(3, 1));
            let scale = (1 << 40) + inputs.number(7 << 40, 0) - inputs.one_of(&[0, 7 << 37]);
            let drain = |slower| Some(Drain::new(count, nanos + slower, scale));
            beside(
                inputs,
                |now| LeakyMeter::new(now, drain(0), brim, 9),
                |leaky, what| {
                    match what {
                        0..4 => return leaky.book(what).ok().map(|(mark, _)| (what, mark)),
                        4 => leaky.set_brim(leaky.brim(), 9, leaky.room() - 1),
                        5 | 6 => leaky.set_drain(drain(what)),
                        _ => leaky.set_drain(None),
                    }
                    None
                },
            );
        });
    }

    #[test]
    fn a_warm_up_is_the_same_with_a_word() {
        holds([2, 3], |inputs| {
            let (nanos, period) = (1 + inputs.number(10, 1), 1 + inputs.number(58, 2));
            let (cold, burst) = (1 + inputs.number(3, 0) as u32, 2 - inputs.number(2, 0));
            let pace = |slower: u64| {
                let interval = u128::from(nanos + slower) << 32;
                Pace::Shaped(Shape::new((1, nanos + slower), period, cold, interval, period).expect("a shape"))
            };
            beside(
                inputs,
                |now| WarmupMeter::new(now, pace(0), burst),
                |warmup, what| {
                    match what {
                        0 => warmup.set_pace(Pace::Stopped, 0, 0),
                        1 => warmup.set_pace(Pace::Unlimited, 0, 0),
                        2 => warmup.set_pace(pace(0), burst, u64::MAX),
                        _ => warmup.set_pace(pace(what / 4), burst, warmup.stored().0),
                    }
                    None
                },
            );
        });
    }
}
