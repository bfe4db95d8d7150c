//! Fan-out over async tasks.

mod basics;
mod bounds;
mod ends;
mod outcomes;
mod slots;
