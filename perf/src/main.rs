mod answer; mod payload; mod request;
fn main(){}
