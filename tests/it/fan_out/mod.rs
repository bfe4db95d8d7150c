//! Tests of fan-outs over async tasks.

mod basics;
mod bounds;
mod each;
mod ends;
mod outcomes;
mod slots;
