//! Circuit breakers.

mod corners;
mod history;
mod probes;
mod published;
