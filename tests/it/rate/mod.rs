//! Rates, and what they are charged.

mod alike;
mod any_window;
mod any_window_rounds;
mod bucket_published;
mod bucket_verbs;
#[cfg(feature = "calendar")]
mod calendar_window;
mod conservation;
mod corners;
mod epochs;
mod fixed_window;
mod forgiven;
#[cfg(feature = "governor")]
mod governed;
mod governor_oracle;
mod hostile;
mod leaky_bucket;
mod oversized;
mod published;
mod quota;
mod replay;
mod settled;
mod token_bucket;
mod trace;
mod wakes;
mod warmup;
mod window;
mod windows;
