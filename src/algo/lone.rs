//! What a state that is one instant remembers: one unit was taken while nothing else counted, and from an instant on nothing
//! counts again. Then the whole state is that instant, and a word beside the lock may hold it (see `rate/gate.rs`). Or nothing
//! counts at all, and the word holds the latest instant that was seen.
//!
//! Between two looks at the state, any number of such takings may have gone through the word. Each of them began when the one
//! before had ceased to count, or was given back: so all but the latest have nothing left to give back, and need no names. The
//! latest is named by its instant. No other taking that may still be given back has the same: one under the lock gets into the
//! word only if it counts longer than all before it.

/// What the word is while it says nothing.
pub(crate) const CLOSED: u64 = u64::MAX;

/// The bit of a word that says that nothing counts. The rest is the latest instant that was seen.
const FREE: u64 = 1 << 63;

/// The bit that tells the mark of a taking through the word from the number of one under the lock.
const BY_WORD: u64 = 1 << 63;

/// The mark, or the first word of it, of a taking that moved the word on to `until`.
#[inline(always)]
pub(crate) fn mark_of(until: u64) -> u64 {
    until | BY_WORD
}

/// The instant until which a taking through the word counts, by its mark. None of one under the lock.
#[inline(always)]
pub(crate) fn until_of(mark: u64) -> Option<u64> {
    (mark & BY_WORD != 0).then_some(mark & !BY_WORD)
}

/// What the word is when nothing counts, and `now` is the latest instant that was seen.
#[inline(always)]
pub(crate) fn free_since(now: u64) -> u64 {
    now | FREE
}

/// The latest instant, by a word that says that nothing counts.
#[inline(always)]
pub(crate) fn since_of(word: u64) -> Option<u64> {
    (word & FREE != 0).then_some(word & !FREE)
}

/// True when an instant may stand in the word, with or without a bit.
#[inline(always)]
pub(crate) fn may_be_word(instant: u64) -> bool {
    instant < CLOSED & !FREE
}

/// How long one unit counts that is taken alone, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// Until nothing of it counts any more.
    pub(crate) lasts: u64,
    /// Of that, how long another unit fits beside it, at the end; all of time where one may do so at once.
    pub(crate) rest: u64,
}

impl Times {
    /// Never alone.
    pub(crate) const NEVER: Self = Self {
        lasts: u64::MAX,
        rest: u64::MAX,
    };
}

/// The instant before which no other unit fits beside one that counts `until` then. The start of time when one does at once.
#[inline(always)]
pub(crate) fn busy_until(until: u64, rest: u64) -> u64 {
    until.saturating_sub(rest)
}

/// Whose mark it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known<M> {
    /// This one's, under the lock.
    As(M),
    /// One's of which nothing counts any more.
    Past,
    /// One's from before everything was cleared.
    Cleared,
}

/// `M` is the mark of a taking under the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lone<M> {
    /// What the state is as a word; [`CLOSED`] when it is more than that.
    word: u64,
    /// The latest instant until which a taking counts, or would have counted, that may have a name.
    latest: u64,
    /// As of when everything was cleared.
    cleared: u64,
    /// The latest taking that went through the word.
    named: (u64, M),
}

impl<M: Copy> Lone<M> {
    /// Nothing has been taken. `mark` is nobody's.
    pub(crate) fn new(mark: M) -> Self {
        Self {
            word: CLOSED,
            latest: 0,
            cleared: 0,
            named: (0, mark),
        }
    }

    /// One unit was taken under the lock, with nothing else there, and counts until then. After a reset, or a change to a faster
    /// rate, it may not count longer than those before: so long the word stays closed, and everybody goes by the lock.
    pub(crate) fn begin(&mut self, until: u64) {
        let unheard_of = until > self.latest || seeded!("gate_opens_again");
        self.word = CLOSED;
        if unheard_of && may_be_word(until) {
            (self.word, self.latest) = (until, until);
        }
    }

    /// The state is more than a word.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.word = CLOSED;
    }

    /// Everything is cleared: what was taken until now is not given back any more.
    pub(crate) fn clear(&mut self) {
        self.end();
        self.cleared = self.latest;
    }

    /// True when the word says what it was opened with.
    #[inline]
    pub(crate) fn is(&self, word: u64) -> bool {
        self.word == word
    }

    /// The latest taking went through the word. As one under the lock it would have this mark.
    pub(crate) fn went(&mut self, until: u64, mark: M) {
        (self.word, self.latest, self.named) = (until, until, (until, mark));
    }

    /// Nothing counts, by the word; whoever went through it, last at `since`, has given back.
    pub(crate) fn is_free(&mut self, since: u64, times: Times) {
        self.word = free_since(since);
        self.latest = self.latest.max(since.saturating_add(times.lasts));
    }

    /// What the word may say, if `now` is the latest instant that was seen. [`CLOSED`] also when another unit fits by then
    /// beside one that counts: the word would refuse it by an earlier reading.
    #[inline(always)]
    pub(crate) fn open(&mut self, now: u64, times: Times) -> u64 {
        match self.word {
            CLOSED => CLOSED,
            word => self.open_with(word, now, times),
        }
    }

    fn open_with(&mut self, word: u64, now: u64, times: Times) -> u64 {
        let is_free = word <= now || since_of(word).is_some();
        if is_free && !seeded!("gate_forgets_a_look") {
            // Whoever comes by an earlier reading shall count from the latest.
            self.word = if may_be_word(now) { free_since(now) } else { CLOSED };
            return self.word;
        }
        match busy_until(word, times.rest) {
            1.. if now >= busy_until(word, times.rest) => CLOSED,
            _ => word,
        }
    }

    /// Whose mark this is, by its first word; none when it is that of a taking under the lock.
    pub(crate) fn find(&self, first: u64) -> Option<Known<M>> {
        let until = until_of(first)?;
        Some(match until {
            _ if until <= self.cleared => Known::Cleared,
            _ if until == self.named.0 => Known::As(self.named.1),
            _ => Known::Past,
        })
    }
}
