//! What every limiter and every combinator keeps to.

mod bad_input;
mod blocking;
mod boxed;
mod cancel_sweep;
mod compose;
mod compose_waits;
mod conformance;
mod first_of;
mod hostile_wakers;
mod leg_name;
mod leg_panics;
mod legs;
mod panic_sweep;
mod question_mark;
mod refusal_legs;
mod status;
mod tuple;
mod turns;
