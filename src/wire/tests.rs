mod laws;
mod vectors;
