//! A sliding window as a leg.

use super::*;
use super::shared::{fault, window_rule};
use crate::rate::SlidingWindow;

/// A [`SlidingWindow`](crate::SlidingWindow).
///
/// ```
/// # use tollgate::policy::spec::{LegRule, SlidingWindowRule};
/// # use std::time::Duration;
/// let rule = LegRule::sliding_window(60, Duration::from_secs(60));
/// assert_eq!(rule.get::<SlidingWindowRule>().map(|rule| (rule.limit, rule.segments)), Some((60, 64)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindowRule {
    /// Units in any span of that length.
    pub limit: u64,
    /// The length.
    pub window: Duration,
    /// The segments in which it moves. They cannot be changed in place.
    pub segments: usize,
}

impl SlidingWindowRule {
    fn limiter(&self) -> Result<SlidingWindow, SpecError> {
        let window = SlidingWindow::new(self.limit, self.window).map_err(fault("window"))?;
        window.segments(self.segments).map_err(fault("segments"))
    }
}

impl Rule for SlidingWindowRule {
    type Limiter = SlidingWindow;
    const KIND: &'static str = "sliding-window";
    window_rule!();

    fn text(&self) -> String {
        format!("{} per {:?} in {} segments", self.limit, self.window, self.segments)
    }

    fn fixed(&self) -> String {
        self.segments.to_string()
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for SlidingWindowRule {
    const KEYS: &'static [&'static str] = &["limit", "window", "segments"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let (limit, window) = (super::shared::limit(table)?, super::shared::window(table)?);
        let segments = table.whole("segments", 1, SlidingWindow::MAX_SEGMENTS as u64)?;
        Ok(Self {
            limit,
            window,
            segments: segments.map_or(SlidingWindow::SEGMENTS, |segments| segments as usize),
        })
    }
}

impl LegRule {
    /// A sliding window in [`SEGMENTS`](SlidingWindow::SEGMENTS) segments.
    pub fn sliding_window(limit: u64, window: Duration) -> Self {
        let segments = SlidingWindow::SEGMENTS;
        SlidingWindowRule {
            limit,
            window,
            segments,
        }
        .into()
    }
}
