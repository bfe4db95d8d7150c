//! Tag and position in one word.

const TAG_SHIFT: u32 = 48;
pub(super) const POSITION: u64 = (1 << TAG_SHIFT) - 1;
const TAGS: u64 = u64::MAX >> TAG_SHIFT;
const VERSIONS: u64 = TAGS >> 1;

/// Tag and position, as one word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    #[inline]
    pub(super) fn new(tag: u64, position: u64) -> Self {
        Self(tag << TAG_SHIFT | position.min(POSITION))
    }
    #[inline]
    pub(super) fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }
    /// Which set of parameters: the same in the last step of a change and after it.
    #[inline]
    pub(super) fn version(self) -> u64 {
        ((self.tag() + 1) >> 1) & VERSIONS
    }
    #[inline]
    pub(super) fn position(self) -> u64 {
        self.0 & POSITION
    }
    /// The same tag with a position that is known to fit.
    #[inline]
    pub(super) fn forward(self, position: u64) -> Self {
        Self(self.0 & !POSITION | position)
    }
    /// The next tag with `position`.
    pub(super) fn next(self, position: u64) -> Self {
        Self::new((self.tag() + 1) & TAGS, position)
    }
    #[inline]
    pub(super) fn at(self, position: u64) -> Self {
        Self::new(self.tag(), position)
    }
    /// The version after `version`.
    pub(super) fn next_version(version: u64) -> u64 {
        (version + 1) & VERSIONS
    }
    /// How many versions after `earlier` the version `later` is.
    pub(super) fn versions_between(earlier: u64, later: u64) -> u64 {
        later.wrapping_sub(earlier) & VERSIONS
    }
}
