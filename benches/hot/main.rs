//! The hot functions, one file each. `cargo bench` measures, `cargo bench -- window` some of them; `cargo test` runs
//! each once. Figures compare two versions of one function on one machine; what a broker does is `perf/`'s to say.
//!
//! One program for all: linking the broker takes longer than running them.

mod ack_rule;
mod cycle;
mod pop_render;
mod push_json;
mod push_packed;
mod segment;
mod spool_record;
mod tail;
mod token;
mod window;

criterion::criterion_group!(
    hot,
    push_json::all,
    push_packed::all,
    segment::all,
    window::all,
    cycle::all,
    ack_rule::all,
    tail::all,
    pop_render::all,
    spool_record::all,
    token::all
);
criterion::criterion_main!(hot);
