//! The memory of one admission, as a fixed number of words.
//!
//! A statically composed policy keeps its legs' tickets in a tuple. A boxed one cannot know their types, so it writes
//! them into one inline buffer of [`BoxTicket::WORDS`] words: that is why a ticket can be written and read back.

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
    fn write(&self, _: &mut [u64]) {}
    fn read(_: &[u64]) -> Self {}
}

impl Ticket for u64 {
    const WORDS: usize = 1;
    fn write(&self, words: &mut [u64]) {
        words[0] = *self;
    }
    fn read(words: &[u64]) -> Self {
        words[0]
    }
}

/// The ticket of a limiter that may have taken no part in the admission.
impl<T: Ticket> Ticket for Option<T> {
    const WORDS: usize = 1 + T::WORDS;
    fn write(&self, words: &mut [u64]) {
        words[0] = self.is_some().into();
        if let Some(ticket) = self {
            ticket.write(&mut words[1..]);
        }
    }
    fn read(words: &[u64]) -> Self {
        (words[0] != 0).then(|| T::read(&words[1..]))
    }
}

/// The ticket of [`Legs`](crate::Legs): the words of the legs' tickets, or the number of a buffer that holds them.
#[derive(Clone, Copy, Debug)]
pub struct BoxTicket(pub(crate) [u64; BoxTicket::WORDS_INLINE]);

impl BoxTicket {
    /// The number of words that fit.
    pub const WORDS_INLINE: usize = 13;

    pub(crate) const EMPTY: Self = Self([0; Self::WORDS_INLINE]);
}

impl Ticket for BoxTicket {
    const WORDS: usize = Self::WORDS_INLINE;
    fn write(&self, words: &mut [u64]) {
        words[..Self::WORDS].copy_from_slice(&self.0);
    }
    fn read(words: &[u64]) -> Self {
        let mut ticket = Self::EMPTY;
        ticket.0.copy_from_slice(&words[..Self::WORDS]);
        ticket
    }
}
