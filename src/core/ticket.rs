//! The memory of one admission, as a fixed number of words.
//!
//! A statically composed policy keeps its legs' tickets in a tuple. A boxed one cannot know their types, so it writes
//! them into one inline buffer of [`BoxTicket::WORDS`] words: that is why a ticket can be written and read back.

use std::num::NonZeroU64;

/// The memory of one admission: plain words, copied freely, dropped without effect.
///
/// The permit that carries a ticket guarantees that it is used once.
///
/// ```
/// # use tollgate::Ticket;
/// /// A slot, and when it was taken.
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// struct Taken {
///     slot: u32,
///     at: u64,
/// }
/// impl Ticket for Taken {
///     const WORDS: usize = 2;
///     fn write(&self, words: &mut [u64]) {
///         (words[0], words[1]) = (self.slot.into(), self.at);
///     }
///     fn read(words: &[u64]) -> Self {
///         Self { slot: words[0] as u32, at: words[1] }
///     }
/// }
/// let (taken, mut words) = (Taken { slot: 3, at: 7 }, [0; 2]);
/// taken.write(&mut words);
/// assert_eq!(Taken::read(&words), taken);
/// ```
pub trait Ticket: Copy + Send + Sync + 'static {
    /// The number of words that [`write`](Ticket::write) fills.
    const WORDS: usize;

    /// Writes the ticket into the first [`WORDS`](Ticket::WORDS) of `words`.
    fn write(&self, words: &mut [u64]);

    /// Reads back the words of [`write`](Ticket::write).
    fn read(words: &[u64]) -> Self;
}

impl Ticket for () {
    const WORDS: usize = 0;
    #[inline]
    fn write(&self, _: &mut [u64]) {}
    #[inline]
    fn read(_: &[u64]) -> Self {}
}

impl Ticket for u64 {
    const WORDS: usize = 1;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[0] = *self;
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        words[0]
    }
}

impl<A: Ticket, B: Ticket> Ticket for (A, B) {
    const WORDS: usize = A::WORDS + B::WORDS;
    #[inline(always)]
    fn write(&self, words: &mut [u64]) {
        self.0.write(words);
        self.1.write(&mut words[A::WORDS..]);
    }
    #[inline(always)]
    fn read(words: &[u64]) -> Self {
        (A::read(words), B::read(&words[A::WORDS..]))
    }
}

/// The ticket of a limiter that may have taken no part in the admission.
impl<T: Ticket> Ticket for Option<T> {
    const WORDS: usize = 1 + T::WORDS;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[0] = self.is_some().into();
        if let Some(ticket) = self {
            ticket.write(&mut words[1..]);
        }
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        (words[0] != 0).then(|| T::read(&words[1..]))
    }
}

/// The ticket of a boxed limiter: the words of the limiter inside the box.
///
/// ```
/// # use tollgate::{BoxLimiter, BoxTicket, Limiter, Ticket};
/// fn words<L: Limiter>() -> usize {
///     <L::Ticket as Ticket>::WORDS
/// }
/// assert!(words::<BoxLimiter>() >= BoxTicket::WORDS_INLINE);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BoxTicket {
    /// Never zero, so that an `Option` or a `Result` of this has no tag of its own and is copied in whole words.
    _whole: NonZeroU64,
    words: [u64; BoxTicket::WORDS_INLINE],
}

impl BoxTicket {
    /// The number of words that fit.
    pub const WORDS_INLINE: usize = 12;

    pub(crate) const EMPTY: Self = Self {
        _whole: NonZeroU64::MIN,
        words: [0; Self::WORDS_INLINE],
    };

    /// An empty ticket in `place`, which is empty again unless the ticket is [kept](Emptied::keep).
    #[inline(always)]
    pub(crate) fn begin(place: &mut Option<Self>) -> Emptied<'_> {
        *place = Some(Self::EMPTY);
        Emptied(place)
    }

    #[inline]
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    #[inline]
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }
}

/// A place for a ticket that is emptied unless the ticket is kept.
pub(crate) struct Emptied<'a>(&'a mut Option<BoxTicket>);

impl Emptied<'_> {
    #[inline(always)]
    pub(crate) fn ticket(&mut self) -> &mut BoxTicket {
        self.0.get_or_insert(BoxTicket::EMPTY)
    }

    #[inline(always)]
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Emptied<'_> {
    fn drop(&mut self) {
        *self.0 = None;
    }
}

impl Ticket for BoxTicket {
    const WORDS: usize = Self::WORDS_INLINE;
    fn write(&self, words: &mut [u64]) {
        words[..Self::WORDS].copy_from_slice(&self.words);
    }
    fn read(words: &[u64]) -> Self {
        let mut ticket = Self::EMPTY;
        ticket.words.copy_from_slice(&words[..Self::WORDS]);
        ticket
    }
}
