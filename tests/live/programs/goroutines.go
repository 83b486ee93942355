// Goroutines of every kind: one runs in recursion, others wait. Prints "ready" when all have begun.
package main

import (
	"os"
	"sync"
)

var sink int

//go:noinline
func spin() {
	for {
		sink++
	}
}

//go:noinline
func descend(depth int) int {
	if depth == 0 {
		spin()
	}
	return descend(depth-1) + 1
}

//go:noinline
func wait(never chan int) int {
	return <-never + 1
}

func main() {
	var begun sync.WaitGroup
	never := make(chan int)
	for index := 0; index < 3; index++ {
		begun.Add(1)
		go func() {
			begun.Done()
			wait(never)
		}()
	}
	begun.Add(1)
	go func() {
		begun.Done()
		descend(5)
	}()
	begun.Wait()
	os.Stdout.WriteString("ready\n")
	wait(never)
}
