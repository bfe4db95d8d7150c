//! The counters without the feature `stats`: they count nothing.

#[derive(Clone, Debug)]
pub(crate) struct Counters;

impl Counters {
    pub(crate) const NONE: Self = Self;

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        false
    }
    pub(crate) fn taken(&mut self) {}
    pub(crate) fn held(&mut self, _: i64) {}
    pub(crate) fn refused(&mut self) {}
    pub(crate) fn joined(&mut self, _: u32, _: usize) {}
    pub(crate) fn granted(&mut self, _: u32) {}
    pub(crate) fn kept(&mut self) {}
    pub(crate) fn looked(&mut self) {}
    pub(crate) fn left(&mut self) {}
    pub(crate) fn timed_out(&mut self) {}
    pub(crate) fn queue_full(&mut self) {}
    pub(crate) fn evicted(&mut self) {}
    pub(crate) fn closed(&mut self, _: usize) {}
    pub(crate) fn emptied(&mut self) {}
}
