// A goroutine panics; with GOTRACEBACK=crash, the runtime raises SIGABRT, which it handles itself
// before it raises it again.
package main

func main() {
	var none []int
	println(none[len(none)])
}
