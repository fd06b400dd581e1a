mod bounds;
mod laws;
mod soak;
mod vectors;
