//! A fixed window as a leg.

use super::*;
use super::shared::{fault, window_rule};
use crate::rate::FixedWindow;

/// A [`FixedWindow`](crate::FixedWindow).
///
/// ```
/// # use tollgate::policy::spec::{FixedWindowRule, LegRule};
/// # use std::time::Duration;
/// let minute = Duration::from_secs(60);
/// assert_eq!(LegRule::fixed_window(60, minute).get(), Some(&FixedWindowRule { limit: 60, window: minute }));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindowRule {
    /// Units per window.
    pub limit: u64,
    /// The length of a window.
    pub window: Duration,
}

impl FixedWindowRule {
    fn limiter(&self) -> Result<FixedWindow, SpecError> {
        FixedWindow::new(self.limit, self.window).map_err(fault("window"))
    }
}

impl Rule for FixedWindowRule {
    type Limiter = FixedWindow;
    const KIND: &'static str = "fixed-window";
    window_rule!();

    fn text(&self) -> String {
        format!("{} per {:?}", self.limit, self.window)
    }

    fn fixed(&self) -> String {
        String::new()
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for FixedWindowRule {
    const KEYS: &'static [&'static str] = &["limit", "window"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        Ok(Self {
            limit: super::shared::limit(table)?,
            window: super::shared::window(table)?,
        })
    }
}

impl LegRule {
    /// A fixed window.
    pub fn fixed_window(limit: u64, window: Duration) -> Self {
        FixedWindowRule { limit, window }.into()
    }
}
